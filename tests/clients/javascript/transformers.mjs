// What @huggingface/transformers loads from a hub: node transformers.mjs URL NAME FOLDER. Prints JSON.

import { AutoConfig, AutoTokenizer, env } from "@huggingface/transformers";

const [hubUrl, name, cacheDir] = process.argv.slice(2);
env.remoteHost = hubUrl;
env.allowLocalModels = false;
env.cacheDir = cacheDir;

const config = await AutoConfig.from_pretrained(name);
const tokenizer = await AutoTokenizer.from_pretrained(name);
const missing = await AutoTokenizer.from_pretrained(`${name}-none`).then(() => null, String);
console.log(`RESULT ${JSON.stringify({
  kind: config.model_type, tokens: tokenizer.encode("a b"), missing,
})}`);
