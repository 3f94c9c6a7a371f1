"""Explains a choice in sentences: the verdict first, then each group with its gain and reason.

    story = explain(choose(profile), profile)
    print(story.as_text())

A group's gain is the step with this group as fp32 and all else unchanged, less the plan's step.
The reason is computed, not guessed: from the last pause of the link, the error budget, or the step
with the best other option.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gradwire.buckets import Bucket
from gradwire.dynamics import Dynamics
from gradwire.errors import PlanError
from gradwire.plan import Plan, takes_vectors
from gradwire.planner.candidates import FP32, is_vector, jobs_of, stages_of
from gradwire.planner.choose import LEAST_GAIN, Choice
from gradwire.planner.exactness import error_of
from gradwire.planner.profile import Profile
from gradwire.planner.stages import way
from gradwire.planner.story import PREDICTION, Explanation, Group, ms
from gradwire.planner.timeline import Job, simulate, step_seconds
from gradwire.planner.verdict import compresses, verdict
from gradwire.strategy import Strategy

_LITTLE = 1e-4  # the share of a step below which times do not differ


def explain(choice: Choice, profile: Profile) -> Explanation:
    """Explains a choice made for this profile."""
    best = choice.best
    assert choice.algorithm == "given" or choice.gap > -1e-9, "no plan is below the bound"
    jobs = jobs_of(profile, best.plan)
    teller = _Teller(choice, profile, [job for job in jobs if job is not None])
    times = iter(range(len(teller.jobs)))
    groups = [
        teller.rows(bucket, strategy, None if job is None else next(times)) if bucket.has_rows
        else teller.group(next(times), bucket, strategy)
        for bucket, strategy, job in zip(best.plan.buckets, best.plan.strategies, jobs)
    ]  # fmt: skip
    timeline = best.timeline
    return Explanation(
        str(verdict(choice)), best.seconds, timeline.backward_end_seconds,
        timeline.exposed_seconds, {k: c.seconds for k, c in choice.baselines.items()},
        choice.lower_bound, profile.world, len(set(profile.hosts)), choice.algorithm, best.error,
        choice.error_budget, tuple(groups),
        timeline.backward_end_seconds - timeline.alone_seconds,
    )  # fmt: skip


def with_prediction(choice: Choice, profile: Profile) -> Plan:
    """Returns the best plan, which carries its story as its prediction."""
    return replace(choice.best.plan, prediction=explain(choice, profile).to_json())


def saved(plan: Plan) -> Explanation:
    """Returns the story that a plan carries. Raises PlanError if it has none, or that of another
    plan, as where a file was edited."""
    if plan.prediction is None:
        raise PlanError(
            "explaining a plan needs the prediction saved in it, or a profile; this plan has no "
            "prediction. Pass --profile with the profile of its model."
        )
    story: Explanation = PREDICTION.take(plan.prediction)
    told = [(own.label, own.tensors, Strategy.parse(own.strategy)) for own in story.groups]
    pairs = zip(plan.buckets, plan.strategies)
    made = [(_label(bucket), len(bucket.names), strategy) for bucket, strategy in pairs]
    if told != made:
        other = next((f"'{one[2]}' for {one[0]}" for one in told if one not in made), "fewer")
        raise PlanError(
            "a plan's prediction must be of this plan, group by group; got one of "
            f"{len(told)} groups, {other}, for {len(made)} buckets. Pass --profile with the "
            "profile of its model, which predicts the plan as it is."
        )
    return story


class _Teller:
    """Explains groups by timelines in which a group travels otherwise."""

    def __init__(self, choice: Choice, profile: Profile, jobs: Sequence[Job]) -> None:
        self.choice, self.profile, self.jobs = choice, profile, list(jobs)
        self.stages, self.timeline = stages_of(profile, choice.best.plan), choice.best.timeline
        self.executor = self.stages.executor(choice.best.plan.lanes)
        self.seconds = step_seconds(self.jobs, self.executor)

    def rows(self, bucket: Bucket, strategy: Strategy, number: int | None) -> Group:
        """Explains a bucket of sparse gradients, which travel exactly, as rows. number: of its
        job; None: its cost is not known."""
        last = done = self.stages.bucketed(bucket).ready_seconds
        why = "sparse gradients travel as rows, exactly; "
        if number is None:
            why += "what they take on this cluster was not measured, and is not counted"
        else:
            done = self.timeline.jobs[number][1]
            known = {c.strategy: c.seconds for c in self.profile.tables
                     if set(c.parameters) == set(bucket.names)}  # fmt: skip
            ordered = sorted(known, key=known.__getitem__)
            why += "alone " + ", ".join(f"'{text}' takes {ms(known[text])}" for text in ordered)
        return Group(
            _label(bucket), len(bucket.names), bucket.elements, str(strategy), last, done, None,
            "rows", why,
        )  # fmt: skip

    def group(self, number: int, bucket: Bucket, strategy: Strategy) -> Group:
        """Explains a bucket of dense gradients. number: of its job."""
        dense = self._with(number, bucket, FP32) if FP32 in self.profile.strategies else None
        gain = None if dense is None else dense - self.seconds
        decided_by, why = self._held_back(number, bucket, strategy) or (
            self._compressed(number, bucket, gain) if compresses(strategy)
            else self._dense(number, bucket, strategy)
        )  # fmt: skip
        return Group(
            _label(bucket), len(bucket.names), bucket.elements, str(strategy),
            self.jobs[number].ready_seconds, self.timeline.jobs[number][1], gain, decided_by, why,
        )  # fmt: skip

    def _with(self, number: int, bucket: Bucket, option: str) -> float:
        """Returns the seconds of the step if the group travelled by this option."""
        return step_seconds(self._changed(number, bucket, option), self.executor)

    def _changed(self, number: int, bucket: Bucket, option: str) -> list[Job]:
        jobs = list(self.jobs)
        jobs[number] = self.stages.job(self.stages.bucketed(bucket), option)
        return jobs

    def _compressed(self, number: int, bucket: Bucket, gain: float | None) -> tuple[str, str]:
        if gain is None:
            return "only", "no strategy without compression was measured"
        now = self._parts(self.jobs[number])
        whole = self._parts(self.stages.job(self.stages.bucketed(bucket), FP32))
        trade = (
            f"{ms(now[1])} on the network instead of {ms(whole[1])}, {ms(now[0])} of local work "
            f"instead of {ms(whole[0])}"
        )
        if gain > _LITTLE * self.seconds:
            return "gain", f"{trade}; {self._after(number, bucket)}"
        if gain < -_LITTLE * self.seconds and FP32 in self.choice.strategies:
            return self._beaten(FP32, -gain)
        if gain < -_LITTLE * self.seconds:
            return "only", f"'{FP32}' would make the step {ms(-gain)} shorter, but is not allowed"
        return "hidden", f"{trade}; both are hidden behind other work"

    def _after(self, number: int, bucket: Bucket) -> str:
        """Says what the group would delay if it were uncompressed: what follows up to the link's
        next pause, or all of it."""
        jobs = self._changed(number, bucket, FP32)
        whole = simulate(jobs, self.executor)
        pauses = [pause for pause in whole.bubbles if pause[0] >= whole.jobs[number][1]]
        if pauses:
            pause = ms(pauses[0][0])
            return f"uncompressed, it would delay later groups up to the link's pause at {pause}"
        if whole.jobs[number][1] >= max(end for _, end in whole.jobs):
            return "uncompressed, it would be the last to arrive"
        return "uncompressed, it would delay all later groups: the link has no pause after it"

    def _dense(self, number: int, bucket: Bucket, strategy: Strategy) -> tuple[str, str]:
        if self.choice.is_enough:
            return (
                "enough",
                "communication adds so little without compression that no compressor was tried",
            )
        steps = self._others(number, bucket, strategy)
        if not steps:
            if not self._ways(bucket):
                return "only", "no strategy that may be used compresses"
            if all(map(is_vector, bucket.parameters)):
                return "vectors", "vectors are sent dense beside compressed matrices"
            return "only", self._mixed()
        best = min(steps, key=steps.__getitem__)
        longer = steps[best] - self.seconds
        if longer < -_LITTLE * self.seconds:
            return self._beaten(best, -longer)
        for begins, ends in self.timeline.bubbles[-1:]:
            if self.timeline.jobs[number][1] <= begins * (1 + 1e-9):
                return "pause", (
                    f"after it the link waits from {ms(begins)} to {ms(ends)} for the next "
                    f"gradient: '{best}' would only make it wait longer"
                )
        if longer > _LITTLE * self.seconds:
            return "work", f"'{best}' would make the step {ms(longer)} longer, by its local work"
        return "hidden", f"hidden behind other work: '{best}' would gain nothing"

    def _mixed(self) -> str:
        """Returns the reason where matrices travel dense together with vectors."""
        why = "it has vectors, too, and no strategy that may be used compresses both"
        if self.choice.algorithm == "given":
            return why
        budget = self.choice.error_budget
        within = "" if budget is None else f" within the budget of {budget:g}"
        return (
            f"{why}; no plan{within} that compresses its matrices apart from them was found to be "
            "shorter"
        )

    def _beaten(self, text: str, gain: float) -> tuple[str, str]:
        """Returns the reason where another strategy would make the step so much shorter."""
        if gain < LEAST_GAIN * self.seconds:
            return "little", f"'{text}' would make the step only {ms(gain)} shorter"
        given = self.choice.algorithm == "given"
        found = "the plan was given" if given else "the search did not find it"
        return "search", f"'{text}' would make the step {ms(gain)} shorter: {found}"

    def _others(self, number: int, bucket: Bucket, strategy: Strategy) -> dict[str, float]:
        """Returns the step's seconds by each other strategy that compresses, and may be used for
        this group."""
        has_vectors = any(map(is_vector, bucket.parameters))
        return {
            text: self._with(number, bucket, text)
            for text, made in self._ways(bucket).items()
            if made != strategy and (takes_vectors(made) or not has_vectors)
        }

    def _ways(self, bucket: Bucket) -> dict[str, Strategy]:
        """Returns the strategies that compress, may be used, and would be this group's if it had
        no vectors."""
        own = Dynamics.of(self.choice.best.plan.main_strategy)
        is_other = self.stages.bucketed(bucket).is_other
        taken = (own.take(text) for text in self.choice.strategies)
        ways = dict.fromkeys(way(text, is_other) for text in taken if text)
        made = {text: Strategy.parse(text) for text in filter(self.profile.measured, ways)}
        return {text: own for text, own in made.items() if compresses(own)}

    def _held_back(
        self, number: int, bucket: Bucket, strategy: Strategy
    ) -> tuple[str, str] | None:
        """Returns the reason if the budget decided, as the best other strategy would make the step
        shorter but the error too large; else None."""
        budget = self.choice.error_budget
        if budget is None:
            return None
        steps = self._others(number, bucket, strategy)
        best = min(steps, key=steps.__getitem__, default=None)
        if best is None or steps[best] > self.seconds * (1 - _LITTLE):
            return None
        plan = self.choice.best.plan
        changed = tuple(
            Strategy.parse(best) if own is bucket else had
            for own, had in zip(plan.buckets, plan.strategies)
        )
        error = error_of(self.profile, replace(plan, strategies=changed))
        if error is None or error <= budget:
            return None
        return "budget", (
            f"'{best}' would make the step {ms(self.seconds - steps[best])} shorter, and the "
            f"error {error:.2g}: the budget is {budget:g}"
        )

    @staticmethod
    def _parts(job: Job) -> tuple[float, float]:
        """Returns the seconds of local work, and of moves."""
        local = sum(s.seconds for s in job.stages if s.kind != "wire")
        return local, sum(s.seconds for s in job.stages if s.kind == "wire")


def _label(bucket: Bucket) -> str:
    names = bucket.names
    return names[0] if len(names) == 1 else f"{names[0]} … {names[-1]}"
