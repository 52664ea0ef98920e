"""Runs each command in turn, as often as asked, and prints how long each took: least, half, 95 of 100."""

import json
import os
import subprocess
import sys
import time


def git(repository, *args):
    command = ["git", "-C", repository, "-c", "user.name=b", "-c", "user.email=b@localhost", *args]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def took(command, stdin, expected):
    """Gives the milliseconds from start to exit; any other exit code than expected is an error."""
    began = time.perf_counter()
    # posix_spawn, so that the size of this process is no part of it.
    end = os.open(stdin, os.O_RDONLY)
    null = os.open(os.devnull, os.O_WRONLY)
    files = [(os.POSIX_SPAWN_DUP2, end, 0), (os.POSIX_SPAWN_DUP2, null, 1), (os.POSIX_SPAWN_DUP2, null, 2)]
    pid = os.posix_spawn(command[0], command, os.environ, file_actions=files)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    ended = time.perf_counter()
    os.close(end)
    os.close(null)
    assert code == expected, f"{command}: {code}"
    return (ended - began) * 1000


def main(semel, site, rounds):
    done = json.load(open(f"{site}/run.json"))
    repository = f"{site}/repository"
    candidate = git(repository, "rev-parse", "semel/greeting")
    # The policy in a base commit, which the candidate's tree does not have.
    git(repository, "checkout", "--quiet", "-b", "policy", "main")
    os.mkdir(f"{repository}/.semel")
    with open(f"{repository}/.semel/gate.toml", "w") as file:
        file.write(open(f"{site}/gate.toml").read())
    git(repository, "add", "--all")
    git(repository, "commit", "--quiet", "--message", "Policy")
    base = git(repository, "rev-parse", "HEAD")
    with open(f"{site}/ids", "w") as file:
        file.write(f"{candidate}\n{candidate}^{{tree}}\n")
    judge = [semel, "--state", f"{site}/state", "gate", "--certificate", done["envelope"], "--repository", repository]
    judge += ["--record", done["install_record"], "--commit"]
    program = subprocess.run(["which", "git"], check=True, capture_output=True, text=True).stdout.strip()
    commands = {
        "semel gate --policy": (judge + [candidate, "--policy", f"{site}/gate.toml"], os.devnull, 0),
        "semel gate --base": (judge + [candidate, "--base", base], os.devnull, 0),
        "semel gate, refused": (judge + [base, "--policy", f"{site}/gate.toml"], os.devnull, 30),
        "semel --version": ([semel, "--version"], os.devnull, 0),
        "git cat-file --batch": ([program, "-C", repository, "cat-file", "--batch"], f"{site}/ids", 0),
    }
    times = {name: [] for name in commands}
    for _ in range(rounds):
        for name, (command, stdin, expected) in commands.items():
            times[name].append(took(command, stdin, expected))
    print(f"{'ms':24} {'least':>7} {'p50':>7} {'p95':>7}")
    for name, all_of in times.items():
        all_of.sort()
        half, most = all_of[len(all_of) // 2], all_of[len(all_of) * 95 // 100]
        print(f"{name:24} {all_of[0]:7.2f} {half:7.2f} {most:7.2f}")


main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
