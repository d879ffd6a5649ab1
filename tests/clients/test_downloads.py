"""Single files and snapshots, by every client."""


from clients.conftest import Library
from clients.machine import Machine

ONE_FILE = """
from huggingface_hub import hf_hub_download
result = [hf_hub_download("alice/tiny", path, revision=revision) for path, revision in wanted]
"""


def test_files_of_branches_tags_and_commits_come_whole(machine: Machine, library: Library) -> None:
    first, second, third = library.commits
    wanted = [
        ("config.json", None),
        ("model.safetensors", "main"),
        ("docs/deep/note s.txt", second[:12]),
        ("config.json", "v1"),
        ("config.json", "refs/tags/v1"),
        ("branch.txt", "dev/x"),
        ("branch.txt", "refs/heads/dev/x"),
        ("old.txt", first),
    ]
    paths = machine.run(ONE_FILE, wanted=wanted)
    expected = [
        library.tiny["config.json"],
        library.tiny["model.safetensors"],
        library.tiny["docs/deep/note s.txt"],
        library.old_config,
        library.old_config,
        b"x",
        b"x",
        library.tiny["old.txt"],
    ]
    for path, content in zip(paths, expected, strict=True):
        with open(path, "rb") as file:
            assert file.read() == content, path
    snapshots = [path.partition("/snapshots/")[2].partition("/")[0] for path in paths]
    assert snapshots == [second, second, second, first, first, third, third, first]
