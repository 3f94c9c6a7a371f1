"""plan="auto": watch, measure, plan, race, adopt; and again when the job has changed.

    step 0 … ─ as plain fp32 ─┬─ watched ─┬ measured ┬─ plans race ─┬─ the winner ──── drift? ─┐
                              └───────────┴──────────┴──────────────┴────────────◄─────────────┘

All of it happens when a step's first gradient is ready, and on all ranks at the same step:
decisions use numbers that all ranks share. With a sharded model, "all ranks" are those that keep
parts of it, in every replica; the plan describes rank 0's parts, and each rank applies it to its
own.
"""

from __future__ import annotations

import json
import math
from collections.abc import Generator, Iterator, Sequence
from itertools import count
from statistics import median

from torch import nn

from gradwire.dynamics import Dynamics, has_vectors_apart
from gradwire.errors import PlanError
from gradwire.plan import Plan
from gradwire.planner.candidates import Candidate, candidate_of, is_vector, with_best_rows
from gradwire.planner.choose import Choice, choose
from gradwire.planner.correction import moves_factor, with_around
from gradwire.planner.paths import example, is_pattern, whole
from gradwire.planner.profile import Profile
from gradwire.progress import Lines, to_stderr
from gradwire.soundness import Verdict, name_of, sound
from gradwire.strategy import Strategy
from gradwire.training.attach import Handle
from gradwire.training.recommend import from_the_first_step
from gradwire.tuning.agree import from_first, of_ranks
from gradwire.tuning.paths import with_measured_paths
from gradwire.tuning.profiling import measure
from gradwire.tuning.race import Race
from gradwire.tuning.recorder import Recorder
from gradwire.tuning.steps import Life, OnSteps, for_steps

_WARM_UP = 3  # steps
_WATCHED, _WATCHED_SECONDS = (7, 40), 2.0  # least and most steps; about so long if between
_HOPELESS = 3.0  # times the best: predictions are not as wrong as that
_CORRECTIONS = 2  # how often, at most, the profile's network costs are corrected
_LOOK_EVERY = 50  # steps between checks for drift
_DRIFT = 1.3
"""Plan again when steps take this many times as long, or as short: at the first check, later at
twice as many in a row for each search before, as a job with long and short steps has no end."""


class Tuner:
    """Drives one attached model from plan to plan. Made by `attach(…, "auto")`.

    warmup: the number of first steps that keep the plan with which the model was attached.
    """

    def __init__(
        self, module: nn.Module, handle: Handle, strategies: Sequence[str], warmup: int = 0
    ) -> None:
        self._module, self.handle, self._session = module, handle, handle._session
        self._strategies, self._warmup, self._first = tuple(strategies), warmup, handle.plan
        self.profile: Profile | None = None
        self.choice: Choice | None = None
        self.raced: Sequence[tuple[Plan, Sequence[float]]] = ()  # each plan's step seconds
        self.is_settled, self.is_over = False, False
        self._session.expects_memory = any(Strategy.parse(example(s)).feedback for s in strategies)
        self._recorder: Recorder | None = None
        self._guard_looks_from(math.inf)
        self._steps = OnSteps(self._session, lambda steps: self._runs())

    def close(self) -> None:
        """Stops tuning; the plan in force stays, and the guard looks at it."""
        if not self.is_over and not self.is_settled:
            self._guard_looks_from(self._session.step)
        self.is_over = True
        self._session.expects_memory = False
        self._steps.close()
        if self._recorder is not None:
            self._recorder.close()

    def plan_again(self, profile: Profile) -> None:
        """Races, from the next step on, for the best plan of this profile. Call it on all ranks
        with the same profile, between two steps, and only once the model has settled."""
        self.profile, self.is_settled, self.is_over = profile, False, False
        self._steps.live(self._runs(profile))

    def _runs(self, profile: Profile | None = None) -> Life:
        """Tunes, until the end or a PlanError, which all ranks raise."""
        try:
            yield from self._lives(profile)
        except PlanError:
            self.close()
            raise

    def _lives(self, profile: Profile | None = None) -> Life:
        """Tunes; each `yield` is one step. profile: None to measure one first. A rank that is
        alone, which sends nothing, has found its plan."""
        if self._session.world == 1:
            self._say("one rank alone sends nothing: no other plan is looked for")
            self.close()
            self.is_settled = True
            return
        for lasting in (2**searches for searches in count()):
            self.is_settled = False
            self._guard_looks_from(math.inf)
            if profile is None:
                yield from for_steps(_WARM_UP)
                yield from self._until_taken(_WARM_UP)  # so that the optimizers are known
                (slowest,) = map(max, zip(*self._exchanged([self._steps.seconds])))
                profile = yield from self._watch(watched_steps(slowest))
            yield from self._until_taken(self._warmup)
            yield from self._decide(profile)
            is_harmed = yield from self._until_drift(lasting)
            if is_harmed:
                self._go_back()
                return
            profile = None

    def _until_taken(self, steps: int) -> Iterator[None]:
        """Waits until so many steps of the run were not skipped. With a sharded model ranks may
        have skipped other steps."""
        while True:
            (left,) = map(max, zip(*self._exchanged([steps - self._session.taken])))
            if left <= 0:
                return
            yield from for_steps(int(left))

    def _go_back(self) -> None:
        """Goes back to the plan with which the model was attached, and stops tuning."""
        self._adopt(self._first)
        self.is_over = True
        self._say(
            f"the guard found that compression does harm: back to '{self._first.main_strategy}' "
            "for the rest of the run"
        )

    def _watch(self, steps: int) -> Generator[None, None, Profile]:
        self._recorder = Recorder(self._module, self._session)
        yield from for_steps(steps)
        self._recorder.close()
        circle, first = self._session.circle, self._first.main_strategy  # of this rank's parts
        progress = Lines(self._say)
        self._strategies = tuple(json.loads(from_first(circle, self._sound)))
        left = from_first(circle, lambda: str(first))  # rank 0's, on all ranks
        texts = (*map(whole, self._strategies), left)
        profile = measure(self._session, self._recorder, texts, progress)
        patterns = [text for text in self._strategies if is_pattern(text)]
        if patterns:
            usable = self._is_sound
            profile = with_measured_paths(profile, self._session, patterns, usable, progress)
        self._recorder, self.profile = None, profile
        return profile

    def _sound(self) -> str:
        """Returns, as JSON, the strategies that are known to be sound with the optimizers that
        step this model."""
        kept = []
        for text in self._strategies:
            verdicts = self._verdicts(example(text))
            wrong = [pair for pair in verdicts if pair[0].kind != "sound"]
            if wrong:
                verdict, optimizer = wrong[0]
                self._say(f"'{text}' is left out, with {name_of(optimizer)} {verdict}")
                continue
            kept.append(text)
            needed = max((v.evidence.warmup for v, _ in verdicts if v.evidence), default=0.0)
            if needed and not self._warmup:
                self._say(
                    f"'{text}' is known to be sound only if the first {100 * needed:.3g} % of the "
                    "steps are sent uncompressed: pass that number of steps as warmup="
                )
        return json.dumps(kept)

    def _is_sound(self, text: str) -> bool:
        return all(verdict.kind == "sound" for verdict, _ in self._verdicts(text))

    def _verdicts(self, text: str) -> list[tuple[Verdict, object]]:
        """Returns the verdict with each of the optimizers that step this model, for a run whose
        first steps travel dense or no other way."""
        optimizers: Sequence[object] = self.handle.optimizers or [None]
        return [(from_the_first_step(sound(text, own)), own) for own in optimizers]

    def _decide(self, profile: Profile) -> Iterator[None]:
        """Races plans, races again where a race shows that the profile is wrong about the
        network, and adopts the winner. Rank 0 chooses: the ranks' own results may differ in the
        last bits between kinds of processors."""
        best = yield from self._choose(profile)
        for _ in range(_CORRECTIONS):
            factor = self._correction(profile)
            if factor == 1.0:
                break
            profile = profile.slowed(factor)
            self._say(f"collectives take {factor:.2g} times as long as measured: planning again")
            best = yield from self._choose(profile, best)
        measured = self._measured()
        circle = self._session.circle
        text = from_first(circle, lambda: with_around(profile, measured).to_json())
        self.profile = Profile.from_json(text)
        self._adopt(best)
        self._say(f"adopted {best.main_strategy}, {len(best.buckets)} buckets")
        self.is_settled = True
        self._guard_looks_from(self._session.step)

    def _choose(self, profile: Profile, rival: Plan | None = None) -> Generator[None, None, Plan]:
        """Returns the winner among the plans that the profile finds best, and `rival`, which won
        an earlier race."""
        lanes = range(1, len(self._session.performers) + 1)
        found = json.loads(from_first(self._session.circle, lambda: self._found(profile, lanes)))
        plans = [Plan.from_json(text) for text in found["plans"]]
        if rival is not None and rival.digest() not in [plan.digest() for plan in plans]:
            plans.append(rival)
        self.raced = ()
        if len(plans) == 1:
            return plans[int(found["best"])]
        winner: Plan = yield from self._race(plans, found["baselines"])
        return winner

    def _correction(self, profile: Profile) -> float:
        """Returns how many times as long as in the profile moves took in the last race.
        Collective."""
        measured = self._measured()
        circle = self._session.circle
        return float(from_first(circle, lambda: repr(moves_factor(profile, measured))))

    def _measured(self) -> list[tuple[Plan, float]]:
        return [(plan, median(own)) for plan, own in self.raced]

    def _found(self, profile: Profile, lanes: Sequence[int]) -> str:
        """Returns the finalists as JSON."""
        own = Dynamics.of(self._first.main_strategy)
        self.choice = choice = choose(profile, lanes=lanes, dynamics=own)
        plans = [candidate.plan for candidate in contenders(choice)]
        beside = hedges(profile, choice.best.plan.main_strategy, lanes)
        plans += [hedge for hedge in beside if hedge not in plans]
        digests = [plan.digest() for plan in plans]
        return json.dumps({
            "plans": [plan.to_json() for plan in plans],
            "best": digests.index(choice.best.plan.digest()),
            "baselines": [
                digests.index(digest)
                for c in choice.baselines.values()
                if (digest := c.plan.digest()) in digests
            ],
        })  # fmt: skip

    def _race(
        self, plans: Sequence[Plan], baselines: Sequence[int]
    ) -> Generator[None, None, Plan]:
        race = Race(len(plans), tuple(sorted(set(baselines))))
        self._say(f"{len(plans)} plans race")
        while not race.is_over:
            while not race.is_round_over:
                self._adopt(plans[race.plan])
                yield
                race.took(self._steps.seconds)
            race.learn(self._exchanged(race.own_times()))
        self.raced = [(plan, race.paced(i)) for i, plan in enumerate(plans)]
        return plans[race.winner()]

    def _until_drift(self, lasting: int) -> Generator[None, None, bool]:
        """Waits until steps take much longer or shorter in so many checks, one after the other, or
        the plan does harm; returns whether it is harm. With a sharded model ranks judge harm by
        their own parts, and may have skipped other steps: all learn of it at the next check."""
        guard, at_once = self.handle.guard, self._session.circle is self._session.performers[0]
        yield from for_steps(_WARM_UP)
        usual, lasted = None, 0
        while True:
            mine = list[float]()
            for _ in range(_LOOK_EVERY):
                yield
                if at_once and guard is not None and guard.harmed:
                    return True
                mine.append(self._steps.seconds)
            harmed = float(guard is not None and guard.harmed)
            slowest, harmed = map(max, zip(*self._exchanged([median(mine), harmed])))
            if harmed:
                return True
            usual = usual or slowest
            lasted = 0 if 1 / _DRIFT < slowest / usual < _DRIFT else lasted + 1
            if lasted == lasting:
                self._say(
                    f"steps take {slowest:.3g} s, but took {usual:.3g} s before: planning again"
                )
                return False

    def _adopt(self, plan: Plan) -> None:
        if self.handle.as_here(plan).digest() != self._session.plan.digest():
            Handle.adopt(self.handle, plan)  # TunedHandle.adopt, which users call, ends tuning

    def _guard_looks_from(self, step: float) -> None:
        """Begins the guard's next window at this step; math.inf: none, while plans are tried."""
        if self.handle.guard is not None:
            self.handle.guard.look_from(step)

    def _exchanged(self, numbers: Sequence[float]) -> list[list[float]]:
        rows: list[list[float]] = of_ranks(self._session.circle, numbers).tolist()
        return rows

    def _say(self, line: str) -> None:
        if self._session.circle.rank == 0:
            to_stderr(f"gradwire: {line}")


def contenders(choice: Choice) -> list[Candidate]:
    """Returns the finalists that could win even if the profile is badly wrong, and the best
    baseline. Raises PlanError if there is none."""
    if not choice.baselines:
        raise PlanError(
            "plans race against tuned fp32 or bf16; the profile has neither for "
            f"{', '.join(map(repr, choice.strategies))}. Profile again with 'none | allreduce'."
        )
    kept = min(choice.baselines.values(), key=lambda c: c.seconds)
    most = _HOPELESS * choice.best.seconds
    return [c for c in choice.finalists if c.seconds <= most or c.plan == kept.plan]


def hedges(profile: Profile, strategy: Strategy, lanes: Sequence[int]) -> list[Plan]:
    """Returns the plans of `at_once` on each number of lanes; only the first if there is but one
    bucket, which travels on one lane."""
    made = [at_once(profile, strategy, count) for count in lanes]
    return made[: len(made[0].buckets)]


def at_once(profile: Profile, strategy: Strategy, lanes: int = 1) -> Plan:
    """Returns a plan with everything in one bucket after backward, but for vectors that travel
    apart, and tables of rows, by their best way: the best plan where ranks have so few processors
    that nothing is gained by working beside backward."""
    ordered = list(reversed(profile.parameters))  # in the order of registration
    dense = [p.name for p in ordered if is_vector(p) and has_vectors_apart(strategy)]
    size = 1 + sum(p.bytes for p in ordered)
    others = [r.parameter.name for r in profile.ready if r.is_other]
    made = Plan.make(ordered, strategy, bucket_bytes=size, lanes=lanes, dense=dense, others=others)
    has_rows = any(bucket.has_rows for bucket in made.buckets)
    return with_best_rows(profile, candidate_of(profile, made)).plan if has_rows else made


def watched_steps(seconds: float) -> int:
    """Returns how many steps to watch if one takes so many seconds."""
    fewest, most = _WATCHED
    return max(fewest, min(most, int(_WATCHED_SECONDS / max(seconds, 1e-9))))
