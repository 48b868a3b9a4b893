import subprocess


def test_a_repository_of_its_own(tmp_path):
    def git(*args):
        done = subprocess.run(["git", "-C", tmp_path, *args], check=True, capture_output=True, text=True)
        return done.stdout

    git("init", "-q")
    (tmp_path / "file").write_text("text\n")
    git("add", "file")
    assert git("status", "--porcelain") == "A  file\n"
