// Uploads files that are dropped on a page, through the API that every client uses. A file that the
// hub has in part goes on where it stopped, whoever began it: drop the same files again.

const page = document.querySelector("[data-upload]");
const { repository, branch, parent, digestScript } = page.dataset;
const csrf = page.querySelector("[name=csrf]").value;
const list = page.querySelector("[data-files]");
const input = page.querySelector("input[type=file]");
const folderInput = page.querySelector("[data-folder]");
const zone = page.querySelector("[data-drop]");
const send = page.querySelector("[data-send]");
const status = page.querySelector("[data-status]");
const PART = 32 << 20;
const TRIES = 6;
const UNITS = ["B", "kB", "MB", "GB", "TB"];
// path -> {file, row}
const chosen = new Map();

function size(n) {
  let unit = 0;
  let left = n;
  while (left >= 999.5 && unit < UNITS.length - 1) {
    left /= 1000;
    unit += 1;
  }
  return `${+left.toPrecision(3)} ${UNITS[unit]}`;
}

// The path of the hub's address, where a proxy gives it one.
const prefix = document.documentElement.dataset.prefix ?? "";

function say(text, isError = false) {
  status.textContent = text;
  status.classList.toggle("text-danger", isError);
}

function add(path, file) {
  if (path.split("/").some((part) => part === ".git" || part === ".DS_Store")) return;
  chosen.get(path)?.row.remove();
  const row = document.createElement("tr");
  const cells = [path, size(file.size), ""].map((text) => {
    const cell = document.createElement("td");
    cell.textContent = text;
    row.append(cell);
    return cell;
  });
  cells[1].className = "num";
  const bar = document.createElement("progress");
  bar.max = 1;
  bar.value = 0;
  bar.setAttribute("aria-label", `Progress of ${path}`);
  const note = document.createElement("span");
  note.textContent = "chosen";
  cells[2].append(bar, " ", note);
  list.append(row);
  chosen.set(path, { file, row, bar, note });
  send.disabled = false;
  page.classList.add("has-files");
  const total = [...chosen.values()].reduce((sum, each) => sum + each.file.size, 0);
  say(`${chosen.size} ${chosen.size === 1 ? "file" : "files"}, ${size(total)}`);
}

async function addEntry(entry, folder) {
  if (entry.isFile) {
    const file = await new Promise((resolve, reject) => entry.file(resolve, reject));
    add(folder + entry.name, file);
    return;
  }
  const reader = entry.createReader();
  for (;;) {
    // A folder is read in batches, until one is empty.
    const batch = await new Promise((resolve, reject) => reader.readEntries(resolve, reject));
    if (!batch.length) return;
    for (const each of batch) await addEntry(each, `${folder}${entry.name}/`);
  }
}

function digest(file, seen) {
  return new Promise((resolve, reject) => {
    const worker = new Worker(digestScript);
    worker.onmessage = ({ data }) => {
      if (data.done !== undefined) seen(data.done);
      else {
        worker.terminate();
        if (data.error) reject(new Error(`it cannot be read: ${data.error}`));
        else resolve(data.sha256);
      }
    };
    worker.onerror = () => reject(new Error("its SHA-256 could not be taken"));
    worker.postMessage({ id: 0, file });
  });
}

function put(url, body, headers, seen) {
  return new Promise((resolve, reject) => {
    const request = new XMLHttpRequest();
    request.open("PUT", url);
    for (const [name, value] of Object.entries({ "X-CSRF-Token": csrf, ...headers })) {
      request.setRequestHeader(name, value);
    }
    request.upload.onprogress = (event) => seen(event.loaded);
    request.onload = () => resolve(request);
    request.onerror = () => reject(new Error("the connection broke"));
    request.send(body);
  });
}

function sentence(request) {
  try {
    return JSON.parse(request.responseText).error.message;
  } catch {
    return `the hub answered ${request.status}`;
  }
}

async function transfer(file, sha256, seen) {
  const url = `${prefix}/v1/uploads/${sha256}`;
  let failures = 0;
  for (;;) {
    try {
      const head = await fetch(url, { method: "HEAD" });
      if (head.ok && head.headers.get("Upload-Complete") === "1") return;
      const offset = head.ok ? Number(head.headers.get("Upload-Offset")) : 0;
      const end = Math.min(offset + PART, file.size);
      const isWhole = offset === 0 && end === file.size;
      const range = end > offset ? `bytes ${offset}-${end - 1}/${file.size}` : `bytes */${file.size}`;
      const headers = isWhole ? {} : { "Content-Range": range };
      const answer = await put(url, file.slice(offset, end), headers, (n) => seen(offset + n));
      if (answer.status === 200 || answer.status === 201) return;
      if (answer.status !== 202 && answer.status !== 409 && answer.status < 500) {
        const refusal = new Error(sentence(answer));
        refusal.isFinal = true;
        throw refusal;
      }
      if (answer.status === 202) failures = 0;
      else throw new Error(sentence(answer));
    } catch (error) {
      failures += 1;
      if (error.isFinal || failures >= TRIES) throw error;
      await new Promise((resolve) => setTimeout(resolve, 500 * 2 ** failures));
    }
  }
}

async function one(path, { file, bar, note }) {
  note.textContent = "reading";
  const sha256 = await digest(file, (n) => { bar.value = (0.3 * n) / Math.max(file.size, 1); });
  note.textContent = "sending";
  await transfer(file, sha256, (n) => {
    bar.value = 0.3 + (0.7 * n) / Math.max(file.size, 1);
    note.textContent = `${size(n)} of ${size(file.size)}`;
  });
  bar.value = 1;
  note.textContent = "here";
  return { op: "add", path, sha256, size: file.size };
}

async function ask(method, url, body) {
  const answer = await fetch(url, {
    method,
    headers: { "Content-Type": "application/json", "X-CSRF-Token": csrf },
    body: body && JSON.stringify(body),
  });
  const text = await answer.text();
  if (!answer.ok) throw new Error(sentence({ responseText: text, status: answer.status }));
  return JSON.parse(text);
}

async function settled(jobId) {
  for (;;) {
    const job = await ask("GET", `${prefix}/v1/jobs/${jobId}`);
    if (job.state === "done") return;
    if (job.state !== "queued" && job.state !== "running") {
      throw new Error(`the hub could not store it: ${job.error?.message ?? job.state}`);
    }
    say(`The hub stores the files: ${job.progress?.message ?? job.state}`);
    await new Promise((resolve) => setTimeout(resolve, 700));
  }
}

async function sendAll() {
  send.disabled = true;
  page.setAttribute("aria-busy", "true");
  try {
    const operations = [];
    for (const [path, each] of chosen) {
      try {
        operations.push(await one(path, each));
      } catch (error) {
        each.note.textContent = error.message;
        throw new Error(`${path}: ${error.message}`);
      }
    }
    say("Committing");
    const base = page.querySelector("[name=base]").value.trim();
    const made = await ask("POST", `${prefix}/v1/repositories/${repository}/commits`, {
      ref: branch,
      message: page.querySelector("[name=message]").value || "Upload by browser",
      parent: parent || null,
      base: base || null,
      operations,
    });
    if (made.job_id) await settled(made.job_id);
    say("Done");
    location.assign(`${prefix}/${repository}`);
  } catch (error) {
    say(`${error.message}. What has come stays for a while: send the same files again to go on.`, true);
    send.disabled = false;
  } finally {
    page.removeAttribute("aria-busy");
  }
}

for (const each of [input, folderInput]) {
  each.addEventListener("change", () => {
    for (const file of each.files) {
      // The folder's own name is no part of the model.
      add(file.webkitRelativePath.split("/").slice(1).join("/") || file.name, file);
    }
    each.value = "";
  });
}
for (const name of ["dragenter", "dragover"]) {
  zone.addEventListener(name, (event) => {
    event.preventDefault();
    zone.classList.add("over");
  });
}
for (const name of ["dragleave", "drop"]) zone.addEventListener(name, () => zone.classList.remove("over"));
zone.addEventListener("drop", async (event) => {
  event.preventDefault();
  // Entries end with the event, so all are taken before anything is awaited.
  const entries = [...event.dataTransfer.items].map((item) => item.webkitGetAsEntry?.()).filter(Boolean);
  const files = [...event.dataTransfer.files];
  try {
    if (entries.length === 1 && entries[0].isDirectory) {
      const reader = entries[0].createReader();
      for (;;) {
        const batch = await new Promise((resolve, reject) => reader.readEntries(resolve, reject));
        if (!batch.length) break;
        for (const each of batch) await addEntry(each, "");
      }
    } else if (entries.length) for (const entry of entries) await addEntry(entry, "");
    else for (const file of files) add(file.name, file);
  } catch (error) {
    say(`A dropped file cannot be read: ${error.message}`, true);
  }
});
send.addEventListener("click", sendAll);
