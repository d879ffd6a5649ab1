// What @huggingface/hub gets of a hub: node hub.mjs URL TOKEN OWNER FOLDER. Prints JSON.

import { createHash } from "node:crypto";
import { readdir } from "node:fs/promises";
import * as client from "@huggingface/hub";

const [hubUrl, accessToken, owner, cacheDir] = process.argv.slice(2);
const name = `${owner}/Java-Script`;
const repo = { type: "model", name };
const own = { hubUrl, accessToken, repo };
const found = {};

const bytes = (n, factor) => new Uint8Array(n).map((_, i) => Math.imul(i, factor) >>> 13);
const sha256 = (data) => createHash("sha256").update(data).digest("hex");
const sha256OfBlob = async (blob) => sha256(new Uint8Array(await blob.arrayBuffer()));
const refusal = (call) => call.then(() => null, (error) => [error.statusCode, error.message]);
async function all(items, pick) {
  const list = [];
  for await (const item of items) list.push(pick(item));
  return list;
}

const who = await client.whoAmI({ hubUrl, accessToken });
found.who = [who.type, who.name];
found.made = (await client.createRepo({ ...own, private: true })).repoUrl;
found.again = await refusal(client.createRepo({ ...own, repo: { type: "model", name: name.toLowerCase() } }));

const whole = bytes(1_500_000, 2654435761);
const other = bytes(900_000, 40503);
const files = [
  { path: "config.json", content: new Blob(['{"model_type": "x"}']) },
  { path: "empty.txt", content: new Blob([]) },
  { path: "deep/w.bin", content: new Blob([whole]) },
];
await client.uploadFiles({ ...own, files });
await client.uploadFile({ ...own, useXet: false, file: { path: "o.bin", content: new Blob([other]) } });
const operations = [
  { operation: "addOrUpdate", path: "a/b.txt", content: new Blob(["b"]) },
  { operation: "delete", path: "empty.txt" },
];
found.commit = (await client.commit({ ...own, title: "both at once", operations })).commit.url;

found.files = await all(client.listFiles({ ...own, recursive: true, expand: true }), (each) => [
  each.type, each.path, each.size, Boolean(each.lfs), Boolean(each.lastCommit),
]);
const paths = await client.pathsInfo({ ...own, paths: ["deep/w.bin", "none"], expand: true, revision: "HEAD" });
found.paths = paths.map((each) => [each.path, each.size, Boolean(each.lastCommit)]);
found.exists = [
  await client.fileExists({ ...own, path: "deep/w.bin" }), await client.fileExists({ ...own, path: "none" }),
];
const info = await client.fileDownloadInfo({ ...own, path: "deep/w.bin" });
found.info = [info.size, info.etag === `"${sha256(whole)}"`];
found.downloads = [
  await sha256OfBlob(await client.downloadFile({ ...own, path: "deep/w.bin" })) === sha256(whole),
  await sha256OfBlob(await client.downloadFile({ ...own, path: "o.bin", xet: false })) === sha256(other),
];
found.raw = await (await client.downloadFile({ ...own, path: "o.bin", raw: true })).text();
found.pointer = sha256(other);

const fields = ["author", "sha", "spaces", "gitalyUid"];
const model = await client.modelInfo({ hubUrl, accessToken, name: name.toUpperCase(), additionalFields: fields });
found.model = [model.name, model.private, model.author, model.sha.length];
const asked = { search: { owner }, sort: "likes", additionalFields: ["filePaths"] };
const models = await all(client.listModels({ hubUrl, accessToken, ...asked }), (each) => [
  each.name, each.filePaths.length,
]);
found.models = models.filter(([each]) => each === name);
const commits = client.listCommits({ ...own, revision: "main", batchSize: 2 });
found.commits = await all(commits, (each) => each.title);
found.count = await client.countCommits({ ...own, revision: "main" });
await client.createBranch({ ...own, branch: "dev/x" });
await client.deleteBranch({ ...own, branch: "dev/x" });
await client.checkRepoAccess(own);
found.repos = [await client.repoExists(own), await client.repoExists({ ...own, repo: `${owner}/none` })];
found.snapshot = (await readdir(await client.snapshotDownload({ ...own, cacheDir }))).sort();
const refused = { ...own, title: "as a pull request", operations, isPullRequest: true };
found.pullRequest = await refusal(client.commit(refused));

await client.deleteFile({ ...own, path: "a" });
found.left = await all(client.listFiles({ ...own, recursive: true }), (each) => each.path);
await client.deleteRepo(own);
found.gone = await client.repoExists(own);
console.log(`RESULT ${JSON.stringify(found)}`);
