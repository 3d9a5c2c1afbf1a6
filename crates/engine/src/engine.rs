//! The engine: a loaded model, its sessions, and the pass that serves them.

use std::{
    collections::{BTreeMap, HashSet},
    sync::{Arc, OnceLock},
    time::Instant,
};

use djinn_device::{Backend, Device, DeviceInfo, Event, Stream, View, Weight};
use djinn_kv::{DiskTier, KvUsage, Pager, PagingStats, PendingPages};
use djinn_model::{
    Model,
    program::{Op, Program, TensorId},
};
use djinn_types::Order;
use djinn_weights::{PassStats, Recorder, Streamer, Timeline};

use crate::{
    Blueprint, EngineError, Footprint, Output, Quota, SessionId,
    durability::Journal,
    executor::batch::Batch,
    executor::{
        pass::{Pass, PassResult, upload_ids, upload_numbers},
        progress::PassProgress,
    },
    probe::staging::Staging,
    sampling::sample_outputs::settle,
    session::Session,
    session::state::{State, Step},
};

/// Rows from which on a pass takes as long as its rows do, and not as its weights.
const MANY_ROWS: usize = 128;

/// How far loading has come.
#[derive(Clone, Copy, Debug)]
pub struct LoadProgress {
    /// Bytes in place.
    pub loaded: u64,
    /// Bytes of all weights that will be.
    pub total: u64,
}

/// A model on a device, and its sessions.
pub struct Engine {
    /// First, so that its threads end before what they use.
    streamer: Box<dyn Streamer>,
    recorder: Arc<Recorder>,
    device: Arc<dyn Device>,
    pub(crate) model: Model,
    pub(crate) blueprint: Blueprint,
    pub(crate) pager: Pager,
    staging: Staging,
    last_pass: Option<PassStats>,
    passes: usize,
    /// Seconds of the host that stops took in the last pass.
    stop_s: f64,
    /// Seconds a row takes in a pass of many; 0 until there was one.
    pub(crate) row_s: f64,
    pub(crate) sessions: BTreeMap<SessionId, Session>,
    /// Where the first in the order of sessions stood last.
    pub(crate) clock: u64,
    pub(crate) next_id: u64,
    /// What tells the model from others, once somebody asked.
    pub(crate) identity: OnceLock<String>,
    /// What sessions are to be told with the next pass.
    pub(crate) untold: Vec<Output>,
    /// Why the disk takes no more pages, once it does not, and why it last did not.
    pub(crate) disk_failure: Option<String>,
    pub(crate) last_failure: Option<String>,
    /// Tokens that sessions did not compute because others had.
    pub(crate) adopted: usize,
    pub(crate) quota: Quota,
    /// Of owners who have their own.
    pub(crate) quotas: BTreeMap<String, Quota>,
    /// Where sessions are written down, if they are.
    pub(crate) journal: Option<Journal>,
    /// Steps in a row in which nobody could run.
    stuck: usize,
}

impl Engine {
    /// Takes the slab of a blueprint and brings in the weights that stay.
    pub fn load(
        model: Model,
        backend: &dyn Backend,
        blueprint: Blueprint,
        progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<Self, EngineError> {
        blueprint.check(backend)?;
        let device = backend.open(blueprint.footprint().slab(), blueprint.pass_limits())?;
        let weights = blueprint.weights();
        let recorder = Arc::new(Recorder::new(weights.labels()));
        let mut streamer = djinn_weights::start(weights, &device, &model.weights, &recorder)?;
        let total = weights.load_bytes();
        streamer.load(weights, &mut |loaded| {
            progress(LoadProgress { loaded, total });
        })?;
        device.release_staging();
        for weight in expected(&model.program) {
            device.warm_up(weight)?;
        }
        let arena = &blueprint.arena;
        if let Some(rope) = &model.program.rope {
            upload_numbers(&*device, arena.frequencies, &rope.frequencies)?;
        }
        let numbers: Vec<i32> = (0..arena.row_numbers.rows as i32).collect();
        upload_ids(&*device, arena.row_numbers, &numbers)?;
        let blocks = model.program.dims.blocks;
        let settings = &blueprint.settings;
        let disk = blueprint.spill.clone().map(|folder| DiskTier {
            folder,
            pages: settings.disk_pages,
        });
        Ok(Engine {
            pager: Pager::new(&device, arena.kv(0), blocks, settings.host_pages, disk)?,
            staging: Staging::default(),
            streamer,
            recorder,
            device,
            model,
            blueprint,
            sessions: BTreeMap::new(),
            clock: 0,
            next_id: 0,
            identity: OnceLock::new(),
            last_pass: None,
            passes: 0,
            stop_s: 0.0,
            row_s: 0.0,
            untold: Vec::new(),
            disk_failure: None,
            last_failure: None,
            adopted: 0,
            quota: Quota::default(),
            quotas: BTreeMap::new(),
            journal: None,
            stuck: 0,
        })
    }

    /// The model.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// The device.
    pub fn device(&self) -> DeviceInfo {
        self.device.info()
    }

    /// Where the slab's bytes went.
    pub fn footprint(&self) -> Footprint {
        self.blueprint.footprint()
    }

    /// What was decided before loading.
    pub fn blueprint(&self) -> &Blueprint {
        &self.blueprint
    }

    /// The number that the next session will have.
    pub fn next_session(&self) -> SessionId {
        SessionId(self.next_id)
    }

    /// How many passes there were.
    pub fn passes(&self) -> usize {
        self.passes
    }

    /// What the last pass cost.
    pub fn last_pass(&self) -> Option<PassStats> {
        self.last_pass
    }

    /// Seconds of the host that went, in the last pass, into what sessions which stopped need
    /// to go on.
    pub fn stop_seconds(&self) -> f64 {
        self.stop_s
    }

    /// Keeps a record of copies, waits and products from now on.
    pub fn record(&self) {
        self.recorder.turn_on();
    }

    /// The record.
    pub fn timeline(&self) -> Timeline {
        self.recorder.timeline()
    }

    /// Ends the record and gives it.
    pub fn end_record(&self) -> Timeline {
        self.recorder.turn_off()
    }

    /// What pages of KV went to host memory and came back; waits for those under way.
    pub fn paging_stats(&mut self) -> Result<PagingStats, EngineError> {
        Ok(self.pager.stats()?)
    }

    /// Pages of KV in each tier.
    pub fn kv_usage(&self) -> KvUsage {
        self.pager.usage()
    }

    /// Whether no session can run: none has tokens to run, or those that have wait for room
    /// that sessions hold which wait themselves.
    pub fn is_idle(&self) -> bool {
        !self.can_run()
    }

    /// Panics unless pages and sessions agree.
    pub fn check_integrity(&self) {
        self.pager
            .pages()
            .check_integrity(self.sessions.values().map(|s| &s.pages));
        self.streamer.check_integrity();
    }

    /// Runs one pass over the ready sessions whose turn it is, all of them where there is
    /// room. Where it fails, those sessions are over: half a pass may already have been
    /// captured, and must not be captured again. A session whose pages could not be moved
    /// is over too, and told so; the others go on.
    pub fn step(&mut self) -> Result<Vec<Output>, EngineError> {
        self.step_with(&mut |_| {})
    }

    /// The same, calling `meanwhile` again and again while a device that works by itself does: what
    /// cannot wait for the end of a pass need not.
    pub fn step_with(
        &mut self,
        meanwhile: &mut dyn FnMut(&mut DuringPass<'_>),
    ) -> Result<Vec<Output>, EngineError> {
        let mut outputs = self.advance(meanwhile)?;
        self.write_down(&mut outputs);
        Ok(outputs)
    }

    /// One pass, and what is told of it.
    fn advance(
        &mut self,
        meanwhile: &mut dyn FnMut(&mut DuringPass<'_>),
    ) -> Result<Vec<Output>, EngineError> {
        let now = Instant::now();
        let mut outputs = self.look_after(now);
        self.admit();
        self.adopt();
        let turn = self.make_ready(now);
        outputs.extend(turn.lost);
        outputs.extend(self.work_on_disk(now));
        if turn.run.is_empty() {
            if outputs.is_empty() {
                outputs = self.wait_for_disk();
            }
            return Ok(outputs);
        }
        self.stuck = 0;
        match self.run_pass(&turn.run, meanwhile) {
            Ok(more) => outputs.extend(more),
            Err(error) => {
                self.streamer.abort_pass();
                self.pager.drain();
                outputs.extend(turn.run.iter().map(|&(id, _)| self.fail(id, &error)));
                self.write_down(&mut outputs);
                let told = |output: &Output| !turn.run.iter().any(|(id, _)| *id == output.session);
                self.untold.extend(outputs.into_iter().filter(told));
                return Err(error);
            }
        }
        for output in &mut outputs {
            let session = self.sessions.get(&output.session);
            let is_running = session.is_some_and(|session| session.state == State::Running);
            if let (Some(finish), true) = (output.finish, is_running) {
                output.finish = Some(self.end_turn(output.session, finish));
            }
            if output.paused.is_some() && is_running {
                self.pause(output.session);
            }
        }
        for &(id, _) in &turn.run {
            // The others' turns are over.
            let _ = self.session(id).take(Step::Pass);
        }
        Ok(outputs)
    }

    /// Notes what a row of a pass of many takes.
    fn note_row_time(&mut self) {
        if let Some(pass) = self.last_pass
            && pass.rows >= MANY_ROWS
        {
            self.row_s = pass.seconds / pass.rows as f64;
        }
    }

    /// Nobody runs: waits until a page arrives that somebody needs, or makes room for the
    /// others where the disk takes none.
    fn wait_for_disk(&mut self) -> Vec<Output> {
        if self.pager.disk_transfers_in_flight() > 0 {
            return self.take_from_disk(true);
        }
        // What the disk has already goes there at once, and makes room for the next time.
        self.stuck += usize::from(self.sessions.values().any(Session::is_ready));
        match self.stuck {
            0..=2 => Vec::new(),
            _ => self.give_way().into_iter().collect(),
        }
    }

    /// Runs so many tokens of these sessions, whose pages are there.
    fn run_pass(
        &mut self,
        run: &[(SessionId, usize)],
        meanwhile: &mut dyn FnMut(&mut DuringPass<'_>),
    ) -> Result<Vec<Output>, EngineError> {
        let mut members = members(&mut self.sessions, run);
        for session in &mut members {
            session.take(Step::Run)?;
        }
        let shares: Vec<usize> = run.iter().map(|(_, rows)| *rows).collect();
        let settings = &self.blueprint.settings;
        let tables = members.iter().map(|session| &session.pages);
        let arrivals = self.pager.pending(tables)?;
        let batch = Batch::new(&members, &shares, settings, self.pager.pages());
        let before: Vec<usize> = members.iter().map(|member| member.computed).collect();
        self.pager.begin_pass()?;
        let ran = self.compute(run, &batch, &arrivals, meanwhile);
        self.pager.end_pass();
        self.staging.clear();
        let PassResult {
            last,
            stopped,
            stop_s,
        } = ran?;
        self.stop_s = stop_s;
        self.last_pass = Some(self.streamer.end_pass(batch.rows())?);
        self.passes += 1;
        let mut members = self::members(&mut self.sessions, run);
        for (member, (session, rows)) in members.iter_mut().zip(&shares).enumerate() {
            session.ran(*rows, stopped.contains(&member));
        }
        let outputs = settle(&mut members, last, &stopped);
        self.note_row_time();
        for (&(id, _), computed) in run.iter().zip(before) {
            self.publish(id, computed);
        }
        Ok(outputs)
    }

    /// Has the device do it, and reads what it came to.
    fn compute(
        &mut self,
        run: &[(SessionId, usize)],
        batch: &Batch,
        arrivals: &PendingPages<Event>,
        meanwhile: &mut dyn FnMut(&mut DuringPass<'_>),
    ) -> Result<PassResult, EngineError> {
        let progress = self.pass(run, batch, arrivals, PassProgress::default(), |pass| {
            pass.begin()?;
            Ok(std::mem::take(&mut pass.progress))
        })?;
        let end = self.device.record(Stream::Compute)?;
        while !self.device.is_past(&end)? {
            meanwhile(&mut DuringPass { engine: self });
        }
        // By name it would be of one lifetime alone.
        #[allow(clippy::redundant_closure_for_method_calls)]
        self.pass(run, batch, arrivals, progress, |pass| pass.end())
    }

    /// A pass, or the rest of one.
    fn pass<T>(
        &mut self,
        run: &[(SessionId, usize)],
        batch: &Batch,
        arrivals: &PendingPages<Event>,
        progress: PassProgress,
        work: impl FnOnce(&mut Pass<'_, '_>) -> Result<T, EngineError>,
    ) -> Result<T, EngineError> {
        let mut members = members(&mut self.sessions, run);
        let arena = &self.blueprint.arena;
        work(&mut Pass {
            device: &*self.device,
            program: &self.model.program,
            blueprint: &self.blueprint,
            ids: arena.ids(batch.rows(), members.len(), batch.head.len()),
            arena,
            streamer: &mut *self.streamer,
            staging: &mut self.staging,
            members: &mut members,
            batch,
            arrivals,
            recording: self.recorder.is_on(),
            progress,
        })
    }
}

/// The sessions of a pass, in its order.
fn members<'s>(
    sessions: &'s mut BTreeMap<SessionId, Session>,
    run: &[(SessionId, usize)],
) -> Vec<&'s mut Session> {
    let order: BTreeMap<SessionId, usize> = run.iter().map(|(id, _)| *id).zip(0..).collect();
    let running = |session: &&mut Session| order.contains_key(&session.id);
    let mut members: Vec<&mut Session> = sessions.values_mut().filter(running).collect();
    members.sort_by_key(|session| order[&session.id]);
    members
}

/// An engine in the middle of a pass.
pub struct DuringPass<'e> {
    engine: &'e mut Engine,
}

impl DuringPass<'_> {
    /// [`Engine::wait`], of one who is not in the pass: its pages begin to move at once, beside what
    /// computes. Nothing where it is; then it has to be asked again when the pass is over.
    pub fn wait(
        &mut self,
        owner: &str,
        id: SessionId,
        expected: Option<Instant>,
    ) -> Option<Result<(), EngineError>> {
        match self.engine.state_of(id) {
            Some("running") => None,
            _ => Some(self.engine.as_owner(owner).wait(id, expected)),
        }
    }
}

/// The shapes of every product, each once and without its place: blocks are alike.
fn expected(program: &Program) -> HashSet<Weight> {
    let weight = |id: TensorId, order: Order| {
        let tensor = program.tensor(id);
        let (rows, cols) = tensor.matrix();
        let view = View::new(0, tensor.dtype, rows, cols);
        Weight { view, order }
    };
    let mut all = HashSet::new();
    for op in program.ops() {
        match op {
            Op::Linear {
                weight: id, order, ..
            } => all.extend([weight(*id, *order)]),
            Op::Experts { experts, .. } => {
                let matrices = experts.iter().flat_map(|e| [e.gate, e.up, e.down]);
                all.extend(matrices.map(|id| weight(id, Order::OutIn)));
            }
            _ => {}
        }
    }
    all
}
