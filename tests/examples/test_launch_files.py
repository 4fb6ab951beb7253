"""The launch files for clusters, and horovodrun's: its dry runs, its errors, and real ranks."""

import os
import shutil
import subprocess
import sys

import pytest

from tests.examples.launching import FOLDER, TRAIN, dry, refused, run, trains, value

SHELL = sorted(path.name for path in FOLDER.glob("*.sh"))


# ---- the files ----


@pytest.mark.parametrize("name", SHELL)
def test_shell_files_parse(name):
    assert subprocess.run(["bash", "-n", FOLDER / name]).returncode == 0


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="shellcheck is not installed")
def test_shellcheck_finds_nothing():
    checked = subprocess.run(["shellcheck", "-x", *SHELL], cwd=FOLDER, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout


def test_the_readme_names_every_start_file():
    text = (FOLDER / "README.md").read_text()
    files = {path.name for path in FOLDER.iterdir() if path.suffix in (".sh", ".py", ".yaml")}
    parts = {"common.sh", "cloud.sh", "hosts_now.sh", "__init__.py", "horovodrun.py", "interfaces.py"}
    assert {name for name in files - parts if f"`{name}`" not in text} == set()


@pytest.mark.parametrize("name", [name for name in SHELL if name not in ("common.sh", "cloud.sh", "hosts_now.sh")])
def test_help_has_the_options_and_an_example(name):
    ended = run(name, "--help")
    assert ended.returncode == 0
    assert f"examples/launch/{name} " in ended.stdout and "--network-interfaces" in ended.stdout


# ---- hosts and slots ----


def test_a_host_file_may_have_comments_and_empty_lines(tmp_path):
    (tmp_path / "hosts").write_text("# ours\n\n10.0.0.1 slots=4 # first\n  10.0.0.2\tslots = 4\n10.0.0.3 slots=4")
    (command,), text = dry("horovodrun.sh", "--hostfile", str(tmp_path / "hosts"))
    assert command[1] == str(FOLDER / "horovodrun.py") and os.access(command[0], os.X_OK)
    assert value(command, "-np") == "12"
    assert value(command, "-H") == "10.0.0.1:4,10.0.0.2:4,10.0.0.3:4"
    assert command[-5:] == TRAIN
    assert "# 12 ranks on 3 hosts" in text


def test_fewer_ranks_take_fewer_hosts():
    (command,), _ = dry("horovodrun.sh", "-np", "4", "-H", "10.0.0.1:2,10.0.0.2:2,10.0.0.3:2")
    assert (value(command, "-np"), value(command, "-H")) == ("4", "10.0.0.1:2,10.0.0.2:2")


def test_without_hosts_this_machine_gets_all_ranks():
    (command,), _ = dry("horovodrun.sh", "-np", "3")
    assert value(command, "-H") == "localhost:3" and "--network-interfaces" not in command
    assert dry("horovodrun.sh", "--num-proc=3")[0] == dry("horovodrun.sh", "-np", "3")[0]  # an equals sign is accepted


def test_interfaces_are_left_to_each_host_unless_they_are_given():
    (command,), _ = dry("horovodrun.sh", "-H", "10.0.0.1:1,10.0.0.2:1")
    assert "--network-interfaces" not in command
    (command,), _ = dry("horovodrun.sh", "-H", "10.0.0.1:1,10.0.0.2:1", "--network-interfaces", "ib0,10.1.0.0/16")
    assert value(command, "--network-interfaces") == "ib0,10.1.0.0/16"


def test_options_reach_horovodrun(tmp_path):
    (tmp_path / "key").write_text("a key")
    options = ["--ssh-port", "2222", "--ssh-identity-file", str(tmp_path / "key"), "--cycle-time-ms", "2.5"]
    (command,), _ = dry("horovodrun.sh", "-np", "2", *options, "--fusion-threshold-mb", "64", "--start-timeout", "7")
    for option, wanted in {
        "--ssh-port": "2222",
        "--ssh-identity-file": str(tmp_path / "key"),
        "--cycle-time-ms": "2.5",
        "--fusion-threshold-mb": "64",
        "--start-timeout": "7",
    }.items():
        assert value(command, option) == wanted


@pytest.mark.parametrize(
    "arguments, reason",
    [
        (["-H", "10.0.0.1"], "--hosts must be HOST:SLOTS"),
        (["-H", "10.0.0.1:x"], "expected a number of slots, got x"),
        (["-H", "a b:2"], "a b is not a valid host name"),
        (["-H", "10.0.0.1:2,10.0.0.1:2"], "listed twice"),
        (["-H", "10.0.0.1:2", "-np", "3"], "-np 3 exceeds the total of 2 slots"),
        (["-H", "10.0.0.1:2,10.0.0.2:1"], "unequal numbers of ranks (2 1)"),
        (["-H", "127.0.0.1:2,10.0.0.2:2"], "127.0.0.1 here, which the other hosts cannot reach"),
        (["-np", "two"], "--num-proc must be a whole number, got two"),
        (["-np"], "-np requires a value"),
        (["--hostfile", "nowhere"], "--hostfile nowhere cannot be read"),
        (["--hostfile", "nowhere", "-H", "a:1"], "not both"),
        (["--ssh-identity-file", "nowhere"], "nowhere cannot be read"),
        (["--cycle-time", "1"], "unknown option --cycle-time"),
    ],
)
def test_what_cannot_be_is_refused_in_words(arguments, reason):
    said = refused("horovodrun.sh", "--dry-run", *arguments, *(["--", *TRAIN] if arguments != ["-np"] else []))
    assert reason in said and said.startswith("horovodrun.sh: ") and said.count("\n") == 1


@pytest.mark.parametrize(
    "line", ["10.0.0.1", "10.0.0.1:4", "10.0.0.1 slots=", "10.0.0.1 slots=four", "10.0.0.1 slots=0"]
)
def test_a_bad_line_of_a_host_file_is_told(tmp_path, line):
    (tmp_path / "hosts").write_text(f"10.0.0.9 slots=4\n{line}\n")
    said = refused("horovodrun.sh", "--dry-run", "--hostfile", str(tmp_path / "hosts"), "--", *TRAIN)
    assert "slots" in said and "10.0.0.1" in said


@pytest.mark.parametrize(
    "command, reason",
    [
        ([], "expected the command for every rank"),
        (["no_such_program"], "program no_such_program was not found"),
        ([sys.executable, "-m", "examples.no_such_script"], "Python cannot find module examples.no_such_script"),
        ([sys.executable, "no_such_script.py"], "the script no_such_script.py cannot be read"),
    ],
)
def test_a_command_that_is_not_there_is_refused(command, reason):
    assert reason in refused("horovodrun.sh", "--dry-run", "-np", "2", "--", *command)


# ---- real ranks ----


def test_after_a_rank_that_fails_comes_one_line_and_no_traceback():
    fails = "import os, sys; sys.exit(3 if os.environ['HOROVOD_RANK'] == '1' else 0)"
    ended = run("horovodrun.sh", "-np", "2", "--", sys.executable, "-c", fails, limit=120)
    assert ended.returncode == 1 and "Traceback" not in ended.stderr, ended.stderr
    assert ended.stderr.splitlines()[-1] == (
        "Rank 1 ended first, with exit code 3, and the job was stopped; its error stands above."
    )


def test_what_a_rank_says_before_it_fails_is_seen():
    ended = run("horovodrun.sh", "-np", "2", "--", sys.executable, "-c", "raise KeyError('the reason')", limit=120)
    assert ended.returncode == 1
    assert "KeyError: 'the reason'" in ended.stderr and "horovod/runner" not in ended.stderr


@pytest.mark.thorough
def test_horovodruntrains(tmp_path):
    (tmp_path / "hosts").write_text("# this machine\nlocalhost slots=2\n")
    trains(run("horovodrun.sh", "--hostfile", str(tmp_path / "hosts"), "--", *TRAIN, limit=600))


# ---- hosts that come and go ----


def test_an_elastic_job_reads_its_hosts_again_and_again(tmp_path):
    hosts = tmp_path / "hosts"
    hosts.write_text("# ours\n10.0.0.1 slots=2 # first\n\n10.0.0.2\tslots = 2\n")
    (command,), text = dry("elastic.sh", "--hostfile", str(hosts), "--min-np", "2", "--max-np", "6")
    assert (value(command, "-np"), value(command, "--min-np"), value(command, "--max-np")) == ("4", "2", "6")
    assert command[-5:] == TRAIN and "# 4 ranks on 2 hosts" in text
    discovers = ["sh", "-c", value(command, "--host-discovery-script")]
    assert subprocess.run(discovers, capture_output=True, text=True).stdout == "10.0.0.1:2\n10.0.0.2:2\n"
    hosts.write_text("10.0.0.3 slots=4\n")
    assert subprocess.run(discovers, capture_output=True, text=True).stdout == "10.0.0.3:4\n"


def test_an_elastic_job_may_have_a_discovery_script(tmp_path):
    (command,), _ = dry("elastic.sh", "--host-discovery-script", "./found.sh", "-np", "4", "--reset-limit", "9")
    assert value(command, "--host-discovery-script") == "./found.sh" and value(command, "--reset-limit") == "9"
    assert "needs -np" in refused("elastic.sh", "--host-discovery-script", "./found.sh", "--", *TRAIN)
    assert "needs --hostfile or --host-discovery-script" in refused("elastic.sh", "-np", "2", "--", *TRAIN)
