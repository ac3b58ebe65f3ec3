#!/usr/bin/python3
"""Breaks the service on purpose: seeded clients, seeded faults, and then the invariants.

Called by `./dev faults`. Each seed works on a service of its own. The same seed
gives the same clients and the same plan of faults; what they meet depends on the
machine. The last line is `N passed, N failed`; a seed that failed says how to
repeat it, and shows what was done to it when, and the ends of the logs.
"""

import argparse
import pathlib
import random
import signal
import sys
import threading
import time
import traceback

TOP = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(TOP / "tests" / "integration"), str(TOP / "tests" / "faults")]
import injector  # noqa: E402
import manager as service_manager  # noqa: E402
import workload  # noqa: E402
from harness import Stack  # noqa: E402
from invariants import Invariants  # noqa: E402

# Lost announcements are looked for this often; the default of 60 s only makes runs longer.
CONFIG = "[daemon]\nscan = 5s\n"
RUN_S = 600  # a plan that cannot be worked off by then is a failure of its own
VIOLATIONS_SHOWN = 40
LOG_BYTES = 40000


def work(seed, stack, ledger, log, options):
    """Clients and faults, until there was enough of both."""
    finish = threading.Event()
    manager = service_manager.ServiceManager(stack, log, ledger, seed)
    faults = injector.Injector(seed, stack, ledger, log, manager, options.kinds, options.faults)
    clients = [
        workload.Client(seed, n, stack.client, ledger, finish) for n in range(options.clients)
    ]
    deadline = time.monotonic() + RUN_S
    try:
        for thread in (manager, faults, *clients):
            thread.start()
        while faults.is_alive() or ledger.operations < options.operations:
            if time.monotonic() > deadline:
                ledger.violation(f"not done in {RUN_S} s: {faults.done} faults by now")
                break
            time.sleep(0.1)
    finally:
        faults.give_up.set()
        finish.set()
        for thread in (faults, *clients):
            if thread.ident:
                thread.join()
        faults.settle()
        while not manager.all_up() and time.monotonic() < deadline + 60:
            time.sleep(0.1)
        manager.finish.set()
        manager.join()
    return faults.done


def run_seed(seed, options):
    """True when everything held."""
    began = time.monotonic()
    ledger, log, done, stack, logs = workload.Ledger(), injector.Log(), 0, None, ""
    try:
        stack = Stack(CONFIG, disks=injector.DISKS_MB)
        invariants = Invariants(stack, ledger)
        invariants.watch()
        log.began = time.monotonic()
        done = work(seed, stack, ledger, log, options)
        log.note("quiet")
        if invariants.back_to_work():
            log.note("it works again")
            invariants.check()
        logs = stack.logs(LOG_BYTES) if ledger.violations or options.verbose else ""
        invariants.nothing_after_down()
    except Exception:  # pylint: disable=broad-except
        ledger.violation(traceback.format_exc())
        logs = stack.logs(LOG_BYTES) if stack else ""
    finally:
        if stack:
            if ledger.violations and options.keep:
                stack.keep()
            else:
                stack.close()
    passed = not ledger.violations
    print(
        f"{'PASS' if passed else 'FAIL'} seed {seed}: {ledger.operations} operations"
        f" ({ledger.unanswered} unanswered), {done} faults, {len(ledger.ids('sandbox'))} sandboxes,"
        f" {len(ledger.ids('execution'))} executions, {time.monotonic() - began:.0f} s",
        flush=True,
    )
    if not passed or options.verbose:
        report(seed, ledger, log, logs, options, stack)
    return passed


def report(seed, ledger, log, logs, options, stack):
    print(f"to repeat it: ./dev faults {seed} {options.words}".rstrip())
    if options.keep and stack:
        print(f"kept: {stack.dir}")
    for text in ledger.violations[:VIOLATIONS_SHOWN]:
        print(f"  violated: {text}")
    if len(ledger.violations) > VIOLATIONS_SHOWN:
        print(f"  and {len(ledger.violations) - VIOLATIONS_SHOWN} more")
    print("faults:")
    for line in log.lines:
        print(f"  {line}")
    print(logs, flush=True)


def parse(words):
    parser = argparse.ArgumentParser(prog="./dev faults", description=__doc__.splitlines()[0])
    parser.add_argument("seed", nargs="*", type=int, help="default: one at random")
    parser.add_argument("--seeds", metavar="A-B", help="all from A to B")
    parser.add_argument("--random", type=int, default=0, metavar="N", help="and N at random")
    parser.add_argument("--operations", type=int, default=500, help="at least; default 500")
    parser.add_argument("--faults", type=int, default=40, help="default 40")
    parser.add_argument("--clients", type=int, default=8, help="default 8")
    parser.add_argument(
        "--kinds",
        default=",".join(injector.KINDS),
        help=f"of faults, separated by commas; default: all: {' '.join(injector.KINDS)}",
    )
    parser.add_argument("--verbose", action="store_true", help="tell the faults in any case")
    parser.add_argument("--keep", action="store_true", help="keep the folder of a seed that failed")
    options = parser.parse_args(words)
    options.kinds = options.kinds.split(",")
    unknown = set(options.kinds) - set(injector.KINDS)
    if unknown:
        parser.error(f"there is no kind {', '.join(sorted(unknown))}")
    options.words = ""
    for name in ("operations", "faults", "clients"):
        if getattr(options, name) != parser.get_default(name):
            options.words += f"--{name} {getattr(options, name)} "
    if options.kinds != list(injector.KINDS):
        options.words += f"--kinds {','.join(options.kinds)}"
    seeds = list(options.seed)
    if options.seeds:
        first, _, last = options.seeds.partition("-")
        if not first.isdigit() or not last.isdigit():
            parser.error("--seeds takes two numbers, as in 1-20")
        seeds += range(int(first), int(last) + 1)
    at_random = options.random if seeds or options.random else 1
    seeds += [random.SystemRandom().randrange(10**9) for _ in range(at_random)]
    return seeds, options


def stopped(*_):
    sys.exit(1)


def main():
    # As at an exception, what was started is ended.
    signal.signal(signal.SIGTERM, stopped)
    seeds, options = parse(sys.argv[1:])
    print(f"seeds: {' '.join(map(str, seeds))}", flush=True)
    failed = sum(not run_seed(seed, options) for seed in seeds)
    print(f"{len(seeds) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
