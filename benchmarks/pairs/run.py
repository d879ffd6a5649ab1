"""`make bench-pairs`: trains what benchmarks/pairs.toml names and is not in the cache yet.

May be killed at any moment: the next call goes on from the last saved step. `--list` says what is
made and where it lies; `--only NAME` makes one pair and what it needs.
"""

import argparse
import fcntl
import multiprocessing
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.pairs.layout import DEFAULT_CACHE, Cache, is_made
from benchmarks.pairs.recipes import RECIPES, Pair, Recipes, Run, load_recipes


@dataclass(frozen=True)
class Job:
    """Makes `final`, once all of `needs` are there."""

    final: Path
    needs: tuple[Path, ...]
    base: str | None = None
    pair: Pair | None = None
    run: Run | None = None

    @property
    def label(self) -> str:
        if self.base is not None:
            return f"base {self.base}"
        assert self.pair is not None
        return f"{self.pair.name}, files" if self.run is None else f"{self.pair.name}, training"


def jobs_of(cache: Cache, names: Sequence[str]) -> list[Job]:
    """Every job for these pairs, once each, in the order of pairs.toml."""
    found: dict[Path, Job] = {}
    for name in names:
        pair = cache.recipes.pairs[name]
        bases = [base for base in (pair.base, pair.other) if base is not None]
        for base in bases:
            final = cache.base(base)
            found.setdefault(final, Job(final, (), base=base))
        needed = [cache.base(base) for base in bases]
        for run in pair.runs:
            final = cache.run(pair, run)
            found.setdefault(final, Job(final, (cache.base(pair.base),), pair=pair, run=run))
            needed.append(final)
        found[cache.pair(pair)] = Job(cache.pair(pair), tuple(needed), pair=pair)
    return list(found.values())


def make_pairs(
    root: Path, names: Sequence[str] | None = None, processes: int = 2, recipes: Path = RECIPES
) -> Cache:
    """Makes what is missing of the named pairs, or of all."""
    cache = Cache(root, load_recipes(recipes))
    with _alone_in(root):
        missing = [
            job
            for job in jobs_of(cache, names or list(cache.recipes.pairs))
            if not is_made(job.final)
        ]
        if missing:
            _make(missing, root, recipes, processes)
    return cache


def _make(missing: list[Job], root: Path, recipes: Path, processes: int) -> None:
    waiting = list(missing)
    running: dict[Future[float], Job] = {}
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, mp_context=context) as pool:
        while waiting or running:
            # Only as many as there are processes, so that each choice is the first that is ready.
            for job in list(waiting):
                if len(running) < processes and all(is_made(need) for need in job.needs):
                    print(f"{job.label}: begins", flush=True)
                    running[pool.submit(_do, job, root, recipes)] = job
                    waiting.remove(job)
            done, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                job = running.pop(future)
                print(f"{job.label}: made in {future.result():.0f} s", flush=True)


def _do(job: Job, root: Path, recipes: Path) -> float:
    # torch and transformers take seconds to import: only the processes that train pay.
    import torch

    from benchmarks.pairs import making

    began = time.monotonic()
    torch.set_num_threads(1)
    cache = Cache(root, load_recipes(recipes))
    if job.base is not None:
        making.make_base(cache, job.base)
    elif job.run is not None:
        assert job.pair is not None
        making.make_run(cache, job.pair, job.run)
    else:
        assert job.pair is not None
        making.make_pair(cache, job.pair)
    return time.monotonic() - began


@contextmanager
def _alone_in(root: Path) -> Iterator[None]:
    """A second bench-pairs on the same cache waits for the first: they would write over it."""
    root.mkdir(parents=True, exist_ok=True)
    with (root / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def list_pairs(root: Path, recipes: Recipes) -> None:
    cache = Cache(root, recipes)
    for pair in recipes.pairs.values():
        state = "made" if is_made(cache.pair(pair)) else "missing"
        print(f"{state:8} {pair.name:34} {cache.pair(pair)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", action="append", metavar="NAME", help="a pair; may be repeated")
    parser.add_argument("--list", action="store_true", help="say what is made and where; no more")
    parser.add_argument("--cache", type=Path, default=DEFAULT_CACHE)
    parser.add_argument("--recipes", type=Path, default=RECIPES)
    parser.add_argument("--processes", type=int, default=2)
    arguments = parser.parse_args()
    recipes = load_recipes(arguments.recipes)
    if arguments.list:
        list_pairs(arguments.cache, recipes)
        return
    unknown = sorted(set(arguments.only or ()) - set(recipes.pairs))
    if unknown:
        parser.error(f"no pair {', '.join(unknown)}; --list names them")
    make_pairs(arguments.cache, arguments.only, arguments.processes, arguments.recipes)


if __name__ == "__main__":
    main()
