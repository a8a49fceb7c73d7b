"""The system on one screen: its two halves, their parts, and the order of the data flow.

    agent ─HTTP─▶ gateway ─▶ answerer ─▶ engine     serve: answers, whatever else happens
                     └─▶ capture ─▶ serve ledger    every turn durable before its last chunk
                                         │
    engine ◀─engine.sock─ judge ◀─ judge queue      learn: judges what was captured
       ▲                    └─▶ learn ledger        with the engine that serves, at low priority
       │                            │ verdicts
       │       sampler ◀────────────┘               algo: what a judged turn teaches, per token
       │          └─▶ policy ledger ─▶ trainer      a step when enough samples wait
       └── policies/n ◀── gate ◀──────────┘         checked, then published and served

The halves run in separate processes and share state only through the ledgers; only weights go back. Stages
import only the root modules and are wired together here. ``processes/`` runs the result: listening,
supervision, loading.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

from openclaw_rl.capabilities import check_training
from openclaw_rl.capture.background import BackgroundLedger
from openclaw_rl.capture.capture import LedgerCapture
from openclaw_rl.capture.conversations import ConversationLedger
from openclaw_rl.capture.judge_queue import LedgerJudgeQueue
from openclaw_rl.capture.learned import tokens_since
from openclaw_rl.capture.leases import Leases
from openclaw_rl.capture.ledgers import Ledgers
from openclaw_rl.capture.normalise import is_ephemeral
from openclaw_rl.capture.off_the_record import OffTheRecord
from openclaw_rl.capture.policy_ledger import PolicyLedger
from openclaw_rl.capture.recorder import Recorder
from openclaw_rl.capture.redact import create_redactor, json_redactor
from openclaw_rl.capture.stored import stored_request
from openclaw_rl.capture.takeovers import TakeOvers
from openclaw_rl.config import Config
from openclaw_rl.engine.absent import AbsentEngine
from openclaw_rl.judge.corrections import asks_again
from openclaw_rl.judge.rules import degeneration
from openclaw_rl.judge.wishes import is_only_taking_back, is_wish, relation
from openclaw_rl.judge.worker import JudgeWorker
from openclaw_rl.models import fingerprint, recommended_sampling
from openclaw_rl.processes import learning_parts as learn
from openclaw_rl.processes import parts
from openclaw_rl.processes.forgetting import Forgetting
from openclaw_rl.processes.learning_system import LearningSystem, ServedModel
from openclaw_rl.processes.serving_system import ServingSystem
from openclaw_rl.scopes import ENVIRONMENTS, PolicyScopes, ScopeOf
from openclaw_rl.serve.auth import DEFAULT_USER, KeyRing
from openclaw_rl.serve.gateway import Answerer, Gateway
from openclaw_rl.serve.metrics import Metrics
from openclaw_rl.serve.quota import Quotas
from openclaw_rl.serve.slots import Slots
from openclaw_rl.serve.takeover import TakeOverAnswerer
from openclaw_rl.sinks import Fan, create_sinks
from openclaw_rl.train.gate import Gate
from openclaw_rl.train.lessons import SampleMaker
from openclaw_rl.train.prompts import Prompts
from openclaw_rl.train.rollouts import GroupSampler
from openclaw_rl.train.takeover import TakeOver, take_over_shares
from openclaw_rl.train.teacher import EngineTeacher
from openclaw_rl.train.untrained import settle_untrained
from openclaw_rl.train.worker import LearnWorker
from openclaw_rl.types import EVERYONE, Engine, Sink
from openclaw_rl.users import Users

# --- serve: answer and capture ---------------------------------------------------------------


def build_serving(config: Config, progress: Callable[[str], None] = lambda line: None) -> ServingSystem:
    """Load the model and open the ledgers; nothing listens yet."""
    config.home.mkdir(parents=True, exist_ok=True, mode=0o700)
    if config.passes_on:
        answerer: Answerer = parts.build_upstream_answerer(config)
        return wire_serving(config, parts.open_ledgers(config), AbsentEngine(), answerer)
    ledgers = parts.open_ledgers(config)
    path = parts.find_model(config, progress)
    engine, renderer = parts.build_engine(config, path), parts.build_renderer(config, path)
    local = parts.build_answerer(config, engine, renderer, recommended_sampling(path), fingerprint(path))
    answerer = parts.build_take_over(config, local) if config.serve.take_over else local
    return wire_serving(config, ledgers, engine, answerer)


def wire_serving(
    config: Config, ledgers: Ledgers, engine: Engine, answerer: Answerer, scopes: ScopeOf | None = None
) -> ServingSystem:
    """``engine`` and ``answerer`` may be any implementation of their protocols."""
    recorder = Recorder(ledgers.serve, redact=create_redactor(config.ledger.redact))
    memory = parts.build_memory(config, ledgers, answerer, is_wish)
    keys = KeyRing.in_home(config.people)
    users, store_false = Users.in_home(config.people), config.serve.store_false == "off-the-record"
    slots = Slots(config.engine.max_running + config.serve.max_waiting, lambda: len(keys.users))
    people = PolicyScopes(config.serve.policy_scope, DEFAULT_USER, users, lambda: keys.users)
    # The same limits as in learning, so that held-back samples are not shown as waiting.
    ledgers.policies.is_shared, ledgers.policies.daily_share = people.is_shared, config.learn.daily_share

    def is_private(user: str) -> bool:
        return users.of(user).off_the_record

    capture = OffTheRecord(LedgerCapture(ledgers.serve, recorder), is_private, store_false)
    if isinstance(answerer, TakeOverAnswerer):
        answerer.stays_here = capture.covers
    gateway = Gateway(
        answerer,
        capture,
        slots=slots,
        metrics=Metrics(),
        conversations=ConversationLedger(ledgers.serve, json_redactor(config.ledger.redact), is_private),
        unfinished=BackgroundLedger(ledgers.serve),
        note=memory.note if config.serve.notes != "off" else lambda user, system: None,
        scope_of=(scopes or people).of,
        quotas=Quotas(users.of, partial(tokens_since, ledgers.serve)),
    )
    store = parts.open_store(config)
    Forgetting(config.home, ledgers, store).resume()
    return ServingSystem(config, engine, ledgers, store, recorder, gateway, keys, memory)


# --- learn: judge, algo, train, gate, publish ------------------------------------------------


def build_learning(
    config: Config, ledgers: Ledgers, served: ServedModel | None, leases: Leases | None = None
) -> LearningSystem:
    """``served`` is the serving model; without one (``--upstream``) turns are judged but not trained on.

    ``leases`` decide what this host does, if several hosts learn.
    """
    judge = learn.build_judge(config, served)
    judging = JudgeWorker(
        LedgerJudgeQueue(ledgers.serve, ledgers.learn, config.judge.session_idle_s),
        judge,
        config.judge,
    )
    judge_turns = partial(learn.judge_here, leases, judging.run)
    if served is None:
        untrained = partial(settle_untrained, ledgers.policies, learn.UPSTREAM)
        return LearningSystem(judge, Fan([]), [judge_turns, partial(learn.judge_here, leases, untrained)])
    sinks = create_sinks(config.learn.sinks, config.home) if config.learn.train else Fan([])
    jobs: list[Callable[[], Awaitable[None]]] = [judge_turns]
    if config.learn.train:
        fence = leases.confirm if leases else lambda: 0
        jobs.append(build_learner(config, served, ledgers.policies, sinks, fence=fence).run)
    if config.serve.take_over:
        steps = take_over_shares(config.serve.take_over_shares)
        jobs.append(TakeOver(TakeOvers(ledgers.learn), ledgers.policies, steps).run)
    if config.learn.rollout:
        jobs.append(learn.load_rollout(config))
    return LearningSystem(judge, sinks, jobs)


def build_learner(
    config: Config,
    served: ServedModel,
    policies: PolicyLedger,
    sink: Sink,
    gate: Gate | None = None,
    fence: Callable[[], int] = lambda: 0,
) -> LearnWorker:
    """Verdicts → samples → training step → gate → published version."""
    store = parts.open_store(config)
    store.fence = fence
    engine, renderer = served.engine, served.renderer
    policies.fingerprint, policies.asks_again = fingerprint(served.path), asks_again
    policies.is_shared, policies.daily_share = learn.sharing(config), config.learn.daily_share
    method_for = learn.methods(config, policies.fingerprint)
    algorithm, episodes = method_for(EVERYONE).algorithm, method_for(ENVIRONMENTS).algorithm
    for each in (algorithm, episodes):
        check_training(config, engine.capabilities, each.needs)
    teacher = EngineTeacher(engine, renderer, learn.choose_teacher(config, policies), degeneration)
    prompts = Prompts(renderer, stored_request, is_ephemeral)
    wishes = policies.wishes(relation, is_only_taking_back, is_wish)
    return LearnWorker(
        policies,
        wishes,
        SampleMaker(
            policies,
            algorithm,
            teacher,
            prompts,
            wishes,
            config.learn.held_out_share,
            GroupSampler(policies.rollouts(), episodes),
            config.serve.take_over,
        ),
        method_for,
        partial(learn.build_trainer, config, served.path, engine),
        gate or Gate(engine, renderer, served.encode, degeneration, config.serve.elsewhere == "learned"),
        engine,
        store,
        learn.print_progress,
        log_step=learn.step_logger(policies, sink),
    )
