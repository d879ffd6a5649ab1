"""History that stock clients rewrite: squashed, and without a file that was pushed by mistake."""

from clients.machine import Machine

HISTORY = """
from huggingface_hub import HfApi, hf_hub_download
api = HfApi()
api.create_repo(name)
put = lambda path, data: api.upload_file(repo_id=name, path_or_fileobj=data, path_in_repo=path)
put("kept.safetensors", b"kept" * 5000)
leaked = put("secret.safetensors", b"secret" * 5000).oid
put("note.txt", b"a note")
secret = [one for one in api.list_lfs_files(name) if one.filename == "secret.safetensors"]
api.permanently_delete_lfs_files(name, secret)
lost = caught(lambda: hf_hub_download(name, "secret.safetensors", revision=leaked))
rewritten = [commit.title for commit in api.list_repo_commits(name)]
files = api.list_repo_files(name)
api.super_squash_history(name, commit_message="one")
result = {
    "lost": lost, "rewritten": rewritten, "files": sorted(files),
    "squashed": [commit.title for commit in api.list_repo_commits(name)],
    "same": sorted(api.list_repo_files(name)) == sorted(files),
    "kept": open(hf_hub_download(name, "kept.safetensors"), "rb").read() == b"kept" * 5000,
    "large": [one.filename for one in api.list_lfs_files(name)],
}
"""


def test_history_is_squashed_and_a_secret_deleted_from_all_of_it(
    machine: Machine, name: str
) -> None:
    found = machine.run(HISTORY, name=name)
    assert "RevisionNotFoundError" in found["lost"]["kinds"]
    assert found["rewritten"][0] == "Upload note.txt with huggingface_hub"
    assert len(found["rewritten"]) == 4
    assert found["files"] == [".gitattributes", "kept.safetensors", "note.txt"]
    assert found["squashed"] == ["one"]
    assert (found["same"], found["kept"]) == (True, True)
    assert found["large"] == ["kept.safetensors"]
