import json
import subprocess

from asyncrl.storage import provenance


def test_the_description_holds_what_makes_runs_comparable():
    described = json.loads(json.dumps(provenance.describe("cpu")))
    assert described["packages"]["torch"]
    assert described["machine"]["device"] == "cpu"
    assert 1 <= described["machine"]["usable_cores"] <= described["machine"]["cores"]


def test_the_commit_says_whether_files_differ_from_it(tmp_path):
    def git(*arguments):
        identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
        command = ["git", "-C", str(tmp_path), *identity, *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    assert provenance.git_commit(tmp_path) is None
    git("init")
    (tmp_path / "file").write_text("a")
    git("add", ".")
    git("commit", "-m", "first", "--no-gpg-sign")
    git("tag", "-a", "v1", "-m", "a tag does not hide the commit")
    assert provenance.git_commit(tmp_path) == git("rev-parse", "HEAD")
    (tmp_path / "file").write_text("b")
    assert provenance.git_commit(tmp_path) == git("rev-parse", "HEAD") + "-dirty"
