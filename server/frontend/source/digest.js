// A worker: the SHA-256 of a file of any size, read in pieces, so that the page stays quick.
import { sha256 } from "@noble/hashes/sha2.js";

const PIECE = 4 << 20;

addEventListener("message", async ({ data: { id, file } }) => {
  try {
    const digest = sha256.create();
    for (let start = 0; start < file.size; start += PIECE) {
      digest.update(new Uint8Array(await file.slice(start, start + PIECE).arrayBuffer()));
      postMessage({ id, done: Math.min(start + PIECE, file.size) });
    }
    const hex = [...digest.digest()].map((byte) => byte.toString(16).padStart(2, "0")).join("");
    postMessage({ id, sha256: hex });
  } catch (error) {
    postMessage({ id, error: `${error.message}` });
  }
});
