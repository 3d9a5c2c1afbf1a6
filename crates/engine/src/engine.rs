//! The engine: a loaded model, its sessions, and the loop that runs passes over them.

use std::{collections::BTreeMap, ops::ControlFlow, path::Path, time::Instant};

use djinn_device::{Backend, DeviceInfo};
use djinn_kv::{DiskTier, KvUsage, Pager, PagingStats};
use djinn_model::Model;
use djinn_types::SessionId;
use djinn_weights::{PassStats, Timeline};

use crate::{
    arena::Footprint,
    blueprint::Blueprint,
    durability::{
        Durability,
        recovery::{RecoveryContext, RestoreScope, Restored},
        saved_file::SavedFile,
        saved_prefixes::{EnginePages, SavedPrefixes},
        saved_session::SavedSession,
        state_folder::StateFolder,
    },
    during_pass::DuringPass,
    elastic_memory::{ElasticMemory, ElasticParts, MemorySplit},
    error::EngineError,
    executor::{Executor, LoadProgress},
    prefix_cache::{PrefixCache, PrefixCacheSettings, PrefixCacheStats},
    sampling::sample_outputs::sample_outputs,
    scheduler::{
        Scheduler, eviction::copy_to_host, fair_share::FairShare, ready::BatchLimits,
        selection::SelectionLimits, spill_policy::SpillPolicy,
    },
    session::{
        Session,
        checker::{CheckedRequest, RequestChecker},
        lifecycle,
        output::{Finish, Output, Transcript},
        quota::{Holdings, Quota},
        request::Request,
        residency::SessionMemory,
        state::Transition,
        status::SessionStatus,
        table::{SessionTable, check_room},
        view::{SessionInfo, SessionView},
    },
    session_ref::SessionRef,
    swap::{SwapRoom, vacate_device},
};

/// A model on a device, with its sessions.
pub struct Engine {
    /// Runs passes. First, so that its threads end before the memory that they use is freed.
    executor: Executor,
    model: Model,
    blueprint: Blueprint,
    pager: Pager,
    sessions: SessionTable,
    scheduler: Scheduler,
    prefix_cache: PrefixCache,
    durability: Durability,
    /// Policy of an elastic layout; `None` if the plan is fixed.
    elastic: Option<ElasticMemory>,
    /// Outputs that the next step returns.
    deferred: Vec<Output>,
    checker: RequestChecker,
    /// Whether the device's memory is given back.
    is_swapped_out: bool,
}

impl Engine {
    /// Allocates the memory of a blueprint on the device and loads the resident weights.
    pub fn load(
        model: Model,
        backend: &dyn Backend,
        blueprint: Blueprint,
        progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<Self, EngineError> {
        let executor = Executor::load(&model, backend, &blueprint, progress)?;
        let settings = blueprint.settings();
        let disk = blueprint.spill.clone().map(|folder| DiskTier {
            folder,
            pages: settings.disk_pages,
        });
        let (device, kv) = (executor.device(), blueprint.arena.kv);
        let mut pager = Pager::new(device, kv, settings.host_pages, disk)?;
        pager.set_device_frames(blueprint.frames())?;
        let ring = &blueprint.plan().ring;
        let limits = SelectionLimits {
            pass: BatchLimits {
                sessions: settings.sessions,
                rows: settings.rows,
                lens_rows: settings.probe_limits.lens_rows,
                window: settings.window_pages,
                head_rows: settings.logit_rows,
            },
            streamed_bytes: ring.streamed_bytes(),
            page_bytes: blueprint.page_bytes(),
            streams: !ring.slots.is_empty(),
        };
        Ok(Engine {
            executor,
            scheduler: Scheduler::new(limits, SpillPolicy::new(settings, &pager)),
            checker: RequestChecker::new(&model, settings),
            elastic: ElasticMemory::new(&blueprint),
            model,
            blueprint,
            pager,
            sessions: SessionTable::default(),
            prefix_cache: PrefixCache::new(backend.phases_agree()),
            durability: Durability::new(kv.dtype()),
            deferred: Vec::new(),
            is_swapped_out: false,
        })
    }

    /// Returns the model.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// Returns a description of the device.
    pub fn device(&self) -> DeviceInfo {
        self.executor.device().info()
    }

    /// Returns how the device memory is used.
    pub fn footprint(&self) -> Footprint {
        self.blueprint.footprint()
    }

    /// Returns the memory layout that the engine was loaded with.
    pub fn blueprint(&self) -> &Blueprint {
        &self.blueprint
    }

    /// Returns the number of passes so far.
    pub fn passes(&self) -> usize {
        self.executor.passes()
    }

    /// Returns the statistics of the last pass.
    pub fn last_pass(&self) -> Option<PassStats> {
        self.executor.last_pass()
    }

    /// Returns the host time in seconds that the last pass spent on saving paused sessions.
    pub fn pause_seconds(&self) -> f64 {
        self.executor.pause_seconds()
    }

    /// Starts recording copies, waits and computation.
    pub fn record(&self) {
        self.executor.recorder().turn_on();
    }

    /// Returns the recording so far.
    pub fn timeline(&self) -> Timeline {
        self.executor.recorder().timeline()
    }

    /// Stops the recording and returns it.
    pub fn end_record(&self) -> Timeline {
        self.executor.recorder().turn_off()
    }

    /// Returns the traffic of KV pages between tiers; waits for copies in flight.
    pub fn paging_stats(&mut self) -> Result<PagingStats, EngineError> {
        Ok(self.pager.stats()?)
    }

    /// Returns the traffic of KV pages between tiers without waiting, and whether copies in flight
    /// are still missing from it.
    pub fn paging_stats_so_far(&mut self) -> Result<(PagingStats, bool), EngineError> {
        let stats = self.pager.stats_so_far()?;
        Ok((stats, self.pager.has_copies_in_flight()))
    }

    /// Returns the number of KV pages in each tier.
    pub fn kv_usage(&self) -> KvUsage {
        self.pager.usage()
    }

    /// Returns how weights and KV pages share device memory now.
    pub fn memory_split(&self) -> MemorySplit {
        let elastic = self.elastic.as_ref();
        elastic
            .map_or_else(MemorySplit::default, ElasticMemory::counts)
            .of(&self.blueprint)
    }

    /// Changes the number of units of weights that stream, within the levels of the layout and as
    /// far as KV pages can move. The policy continues from there. Does nothing if the plan is
    /// fixed.
    pub fn set_level(&mut self, level: usize) -> Result<(), EngineError> {
        match self.elastic_parts() {
            Some((elastic, mut parts)) => elastic.set_level(&mut parts, level),
            None => Ok(()),
        }
    }

    /// Gives the memory of the device back, between two passes. KV pages move to host memory; kept
    /// sessions that run no turn compute again what it has no room for. Refuses if another session
    /// would lose pages; then nothing changes. Sessions stay open, and no pass runs until
    /// [`swap_in`](Self::swap_in). If the device fails, the model may still
    /// [hold its memory](Self::holds_device_memory), and a later call tries again.
    pub fn swap_out(&mut self) -> Result<(), EngineError> {
        if !self.is_swapped_out {
            let frames = self.blueprint.frames();
            let (scheduler, mut residency) = self.scheduling();
            vacate_device(&mut residency)?;
            scheduler.spill.frames_on_return = Some(frames);
            self.is_swapped_out = true;
        }
        match self.executor.holds_memory() {
            true => self.executor.swap_out(),
            false => Ok(()),
        }
    }

    /// Whether the KV pages can leave the device now or later.
    pub fn swap_room(&self) -> SwapRoom {
        SwapRoom::of(&self.sessions, self.pager.pages())
    }

    /// Whether the memory of the device is allocated.
    pub fn holds_device_memory(&self) -> bool {
        self.executor.holds_memory()
    }

    /// Sets whether only turns run that have begun, so that the model can leave the device after them.
    pub fn set_draining(&mut self, is_draining: bool) {
        self.scheduler.is_draining = is_draining;
    }

    /// Takes the memory of the device again and loads the weights. If that fails, or `progress` breaks,
    /// the model stays swapped out, and a later call tries again.
    pub fn swap_in(
        &mut self,
        progress: &mut dyn FnMut(LoadProgress) -> ControlFlow<()>,
    ) -> Result<(), EngineError> {
        if self.is_swapped_out {
            let (model, blueprint) = (&self.model, &self.blueprint);
            self.executor.swap_in(model, blueprint, progress)?;
            self.pager.set_device_frames(blueprint.frames())?;
            self.scheduler.spill.frames_on_return = None;
            self.is_swapped_out = false;
        }
        Ok(())
    }

    /// Whether the model has left the device, so that no pass runs.
    pub fn is_swapped_out(&self) -> bool {
        self.is_swapped_out
    }

    /// Whether a session has tokens to run, now or after the model returns to the device.
    pub fn has_work(&self) -> bool {
        self.sessions.iter().any(Session::is_active)
    }

    /// Moves the boundary between weights and KV pages by the policy.
    fn balance(&mut self) {
        if self.is_swapped_out {
            return;
        }
        if let Some((elastic, mut parts)) = self.elastic_parts() {
            elastic.balance(&mut parts);
        }
    }

    /// Borrows the policy of an elastic layout, and what it changes.
    fn elastic_parts(&mut self) -> Option<(&mut ElasticMemory, ElasticParts<'_>)> {
        let parts = ElasticParts {
            program: &self.model.program,
            executor: &mut self.executor,
            blueprint: &mut self.blueprint,
            scheduler: &mut self.scheduler,
            residency: SessionMemory {
                sessions: &mut self.sessions,
                pager: &mut self.pager,
                running: &[],
                deferred: &mut self.deferred,
            },
        };
        Some((self.elastic.as_mut()?, parts))
    }

    /// Returns the number of tokens that were not computed because the prefix cache had them.
    pub fn prefix_tokens_reused(&self) -> usize {
        self.prefix_cache.reused()
    }

    /// Returns the numbers of the prefix cache, and its size in each tier.
    pub fn prefix_cache_stats(&self) -> PrefixCacheStats {
        let page_bytes = self.blueprint.page_bytes();
        self.prefix_cache.stats(&self.pager, page_bytes)
    }

    /// Sets which sessions share pages of equal beginnings, and how much memory pages of ended
    /// sessions may take. Must be called before the first session is opened.
    ///
    /// # Panics
    /// Panics if a session is open.
    pub fn set_prefix_cache(&mut self, settings: PrefixCacheSettings) {
        assert!(self.sessions.is_empty(), "set_prefix_cache after a session");
        self.prefix_cache.set(settings);
        self.pager.set_cache_limit(settings.limit);
    }

    /// Whether no session can run: none has tokens to run, all that have wait for KV memory, or the
    /// model is swapped out.
    pub fn is_idle(&self) -> bool {
        self.is_swapped_out || !self.scheduler.can_run(&self.sessions, &self.pager)
    }

    /// Checks that pages and sessions agree.
    ///
    /// # Panics
    /// Panics if a page and the sessions that hold it disagree.
    pub fn check_integrity(&self) {
        let tables = self.sessions.iter().map(|session| &session.pages);
        self.pager.pages().check_integrity(tables);
        self.executor.check_integrity();
    }

    /// Sets the quota of owners that have none of their own.
    pub fn set_quota(&mut self, quota: Quota) {
        self.sessions.set_quota(quota);
    }

    /// Sets the quota of one owner; `None` returns the owner to the general quota.
    pub fn set_quota_of(&mut self, owner: &str, quota: Option<Quota>) {
        self.sessions.quotas.set(owner, quota);
    }

    /// Sets the maximum number of bytes of host memory that captures and checkpoints of all
    /// sessions may take together.
    pub fn set_probe_budget(&mut self, bytes: u64) {
        self.sessions.probe_budget = Some(bytes);
    }

    /// Sets whether an owner may open sessions only while it has fewer than are free, so that
    /// there is always room for newcomers. A quota of the owner's own replaces this rule.
    pub fn set_fair_slots(&mut self, fair: bool) {
        self.sessions.fair_slots = fair;
    }

    /// Returns the bytes of host memory that count for captures and checkpoints: of one owner's
    /// sessions, or of all.
    pub fn probe_bytes(&self, owner: Option<&str>) -> u64 {
        self.sessions.holdings(owner).probe_bytes
    }

    /// Returns the checker of requests, which works on any thread.
    pub fn request_checker(&self) -> RequestChecker {
        self.checker.clone()
    }

    /// Checks whether a session could be opened now: the number of sessions, the quota of the
    /// owner, the memory for probes, and the room that the owner leaves for others. Changes
    /// nothing.
    pub fn check_room(&self, checked: &CheckedRequest) -> Result<(), EngineError> {
        let new = Holdings {
            sessions: 1,
            pages: checked.pages(),
            probe_bytes: checked.probe_bytes(),
        };
        check_room(
            &self.sessions,
            self.blueprint.settings(),
            checked.owner(),
            new,
        )
    }

    /// Opens a session. The session runs as soon as the scheduler chooses it.
    pub fn open(&mut self, request: Request) -> Result<SessionId, EngineError> {
        let checked = self.checker.check(request)?;
        self.open_checked(checked)
    }

    /// Opens a session whose request was checked, maybe on another thread. A request that another
    /// engine's checker has checked is checked again.
    pub fn open_checked(&mut self, checked: CheckedRequest) -> Result<SessionId, EngineError> {
        self.durability.settle(&mut self.sessions, true);
        let checked = match self.checker.has_checked(&checked) {
            true => checked,
            false => self.checker.check(checked.request)?,
        };
        self.check_room(&checked)?;
        let (id, settings) = (self.sessions.new_id(), self.blueprint.settings());
        let virtual_time = self.scheduler.virtual_time(checked.owner());
        let share = FairShare::new(checked.request.class, virtual_time);
        let mut session = lifecycle::create(&self.model, settings, checked, id, share);
        self.durability.commit_opened(&mut session)?;
        self.sessions.insert(session);
        Ok(id)
    }

    /// Returns the handle of a session. Another owner's session is reported as not open.
    pub fn session(&mut self, owner: &str, id: SessionId) -> Result<SessionRef<'_>, EngineError> {
        let session = self.sessions.find(id);
        match session.is_some_and(|session| session.owner == owner) {
            true => self.any_session(id),
            false => Err(EngineError::NoSession(id)),
        }
    }

    /// Returns the handle of a session of any owner.
    pub fn any_session(&mut self, id: SessionId) -> Result<SessionRef<'_>, EngineError> {
        self.sessions.get(id)?;
        self.durability.settle(&mut self.sessions, true);
        Ok(SessionRef {
            id,
            model: &self.model,
            blueprint: &self.blueprint,
            checker: &self.checker,
            scheduler: &self.scheduler,
            durability: &mut self.durability,
            residency: SessionMemory {
                sessions: &mut self.sessions,
                pager: &mut self.pager,
                running: &[],
                deferred: &mut self.deferred,
            },
        })
    }

    /// Returns a read-only view of a session of any owner, if it is open.
    pub fn view(&self, id: SessionId) -> Option<SessionView<'_>> {
        let session = self.sessions.find(id)?;
        Some(SessionView::new(session, &self.model, &self.pager))
    }

    /// Closes a session of any owner and returns its transcript, if it is open.
    pub fn close(&mut self, id: SessionId) -> Option<Transcript> {
        Some(self.any_session(id).ok()?.close())
    }

    /// Returns the statuses of all sessions.
    pub fn statuses(&self) -> impl Iterator<Item = SessionStatus> {
        self.sessions.iter().map(|session| session.state.status())
    }

    /// Returns summaries of all sessions, or of one owner's.
    pub fn list(&self, owner: Option<&str>) -> Vec<SessionInfo> {
        let wanted = |session: &&Session| owner.is_none_or(|owner| session.owner == owner);
        let info = |session| SessionView::new(session, &self.model, &self.pager).info();
        self.sessions.iter().filter(wanted).map(info).collect()
    }

    /// Writes sessions to a folder from now on, and restores those of the folder that are in
    /// scope. Must be called before the first session is opened.
    ///
    /// # Panics
    /// Panics if a session is open.
    pub fn attach_state(
        &mut self,
        mut folder: StateFolder,
        scope: RestoreScope,
    ) -> Result<Restored, EngineError> {
        assert!(self.sessions.is_empty(), "attach_state after a session");
        folder.claim(self.durability.identity(&self.model)?)?;
        if let RestoreScope::One(id) = scope {
            folder.get(id)?;
        }
        let mut restored = Restored {
            torn: folder.torn(),
            damaged: folder.damaged(),
            ..Restored::default()
        };
        let mut parked = BTreeMap::new();
        let (saved, last_id) = folder.take_sessions();
        for (id, saved) in saved {
            if !scope.includes(id) {
                parked.insert(id, saved);
                continue;
            }
            match self.restore(&saved) {
                Ok(()) => restored.sessions.push(id),
                Err(error) => {
                    restored.refused.push((id, error));
                    parked.insert(id, saved);
                }
            }
        }
        self.sessions.note_id(last_id);
        let path = folder.path().to_owned();
        self.durability.attach(&self.model, folder, parked)?;
        (restored.prefixes, restored.prefixes_left) = self.attach_prefixes(&path);
        Ok(restored)
    }

    /// Reads the cached pages of a state folder. Returns what was read, and why the rest was not.
    fn attach_prefixes(&mut self, folder: &Path) -> (SavedPrefixes, Option<EngineError>) {
        if self.prefix_cache.saved_limit() == 0 {
            return (SavedPrefixes::default(), None);
        }
        let device = self.executor.device().arithmetic();
        let all_owners = self.prefix_cache.shares_all();
        let (durability, model, mut pages) = self.saving();
        let (read, rest) =
            durability.attach_prefixes(model, folder, device, all_owners, &mut pages);
        (read, rest.err())
    }

    /// Saves cached pages in the state folder for the next process, once no session runs any more, as far as
    /// there is time. Saves none without a state folder.
    pub fn save_prefixes(&mut self, until: Instant) -> Result<SavedPrefixes, EngineError> {
        let limit = self.prefix_cache.saved_limit();
        let (durability, _, mut pages) = self.saving();
        durability.save_prefixes(&mut pages, limit, until)
    }

    /// Borrows what saving cached pages needs.
    fn saving(&mut self) -> (&mut Durability, &Model, EnginePages<'_>) {
        let pages = EnginePages {
            pager: &mut self.pager,
            page_bytes: self.blueprint.page_bytes(),
            page_tokens: self.blueprint.settings().page_tokens,
        };
        (&mut self.durability, &self.model, pages)
    }

    /// Imports a session of a file under a new id. A kept session that was running waits.
    pub fn import(&mut self, file: SavedFile, owner: &str) -> Result<SessionId, EngineError> {
        self.durability.settle(&mut self.sessions, true);
        let identity = self.durability.identity(&self.model)?;
        identity.check(&file.model_identity())?;
        let id = self.sessions.new_id();
        let saved = file.session.imported(id, owner.to_owned());
        let settings = self.blueprint.settings();
        let new = Holdings {
            sessions: 1,
            pages: settings.table_pages(),
            probe_bytes: 0,
        };
        check_room(&self.sessions, settings, owner, new)?;
        self.restore(&saved)?;
        let kv_dtype = Some(self.blueprint.kv_dtype());
        let saved = SavedSession { kv_dtype, ..saved };
        if let Err(error) = self.durability.commit_imported(saved) {
            self.sessions.remove(id);
            return Err(error);
        }
        Ok(id)
    }

    /// Opens a saved session, with nothing computed yet.
    fn restore(&mut self, saved: &SavedSession) -> Result<(), EngineError> {
        let context = RecoveryContext {
            model: &self.model,
            settings: self.blueprint.settings(),
            stops: &self.blueprint.stops,
            virtual_time: self.scheduler.virtual_time(&saved.owner),
            checker: &self.checker,
            kv_dtype: self.blueprint.kv_dtype(),
            legacy_kv_dtype: self.blueprint.legacy_kv_dtype,
        };
        let session = context.restore(saved)?;
        self.sessions.check_count(context.settings.open)?;
        self.sessions.insert(session);
        Ok(())
    }

    /// Applies the time `now` without running a pass: ends sessions whose deadline or lease
    /// is over, moves pages between tiers, and prefetches sessions that are expected soon.
    /// Passes do the same, so this is for idle engines. Returns the outputs of sessions that
    /// ended.
    pub fn maintain(&mut self, now: Instant) -> Vec<Output> {
        let mut outputs = self.apply_time(now);
        if self.is_idle() {
            self.balance();
        }
        let (scheduler, mut residency) = self.scheduling();
        outputs.extend(scheduler.start_transfers(&mut residency, &[], now));
        scheduler.demote_cached(&mut residency, now);
        self.write_outputs(&mut outputs);
        outputs
    }

    /// Runs one pass over the sessions that the scheduler selects. If the pass fails, the turns of
    /// its sessions fail: a kept session waits with all tokens generated so far and computes its
    /// keys and values again when it continues, another session ends. The next call of `step` or
    /// [`maintain`](Self::maintain) returns the outputs that report these failures. Sessions whose
    /// pages could not be moved fail in the same way; the others continue.
    pub fn step(&mut self) -> Result<Vec<Output>, EngineError> {
        self.step_with(&mut |_| {})
    }

    /// Runs one pass as [`step`](Self::step) does, and calls `meanwhile` again and again while
    /// the device computes, for work that cannot wait for the end of the pass.
    pub fn step_with(
        &mut self,
        meanwhile: &mut dyn FnMut(&mut DuringPass<'_>),
    ) -> Result<Vec<Output>, EngineError> {
        let now = Instant::now();
        if self.is_swapped_out {
            return Ok(self.maintain(now));
        }
        let mut outputs = self.apply_time(now);
        self.scheduler.admit(&mut self.sessions, &self.pager);
        self.prefix_cache
            .lookup(&mut self.sessions, &mut self.pager);
        self.balance();
        let (scheduler, mut residency) = self.scheduling();
        scheduler.demote_cached(&mut residency, now);
        let selection = scheduler.select(&mut residency, now);
        outputs.extend(selection.lost);
        outputs.extend(scheduler.start_transfers(&mut residency, &selection.run, now));
        if selection.run.is_empty() {
            if outputs.is_empty() {
                outputs = scheduler.wait_for_pages(&mut residency);
            }
        } else {
            match self.run_pass(&selection.run, meanwhile) {
                Ok(more) => outputs.extend(more),
                Err(error) => return Err(self.fail_pass(&selection.run, outputs, error)),
            }
        }
        self.write_outputs(&mut outputs);
        Ok(outputs)
    }

    /// Borrows the scheduler, and the sessions and pages that scheduling reads and changes.
    fn scheduling(&mut self) -> (&mut Scheduler, SessionMemory<'_>) {
        let residency = SessionMemory {
            sessions: &mut self.sessions,
            pager: &mut self.pager,
            running: &[],
            deferred: &mut self.deferred,
        };
        (&mut self.scheduler, residency)
    }

    /// Returns the deferred outputs of sessions that are still open, and those of sessions that
    /// end because of the time.
    fn apply_time(&mut self, now: Instant) -> Vec<Output> {
        self.durability.settle(&mut self.sessions, false);
        let mut outputs = std::mem::take(&mut self.deferred);
        // The owner of a kept session may have started another turn since the failure.
        let is_reported = |session: &Session| !session.is_active();
        outputs.retain(|output| self.sessions.find(output.session).is_some_and(is_reported));
        let (scheduler, mut residency) = self.scheduling();
        outputs.extend(scheduler.apply_time(&mut residency, now));
        outputs
    }

    /// Runs tokens of the sessions in `run`, whose pages are on the device or in transit.
    fn run_pass(
        &mut self,
        run: &[(SessionId, usize)],
        meanwhile: &mut dyn FnMut(&mut DuringPass<'_>),
    ) -> Result<Vec<Output>, EngineError> {
        let rows: Vec<usize> = run.iter().map(|(_, rows)| *rows).collect();
        let mut members = self.sessions.take_members(run.iter().map(|(id, _)| *id));
        let computed: Vec<usize> = members.iter().map(|member| member.computed).collect();
        let (sessions, durability) = (&mut self.sessions, &mut self.durability);
        let (deferred, policy) = (&mut self.deferred, &self.scheduler.spill);
        let mut during = |pager: &mut Pager, running: &[Session]| {
            let residency = SessionMemory {
                sessions: &mut *sessions,
                pager,
                running,
                deferred: &mut *deferred,
            };
            meanwhile(&mut DuringPass {
                residency,
                policy,
                durability: &mut *durability,
            });
        };
        let (model, blueprint) = (&self.model, &self.blueprint);
        let (executor, pager) = (&mut self.executor, &mut self.pager);
        let ran = executor.run_pass(model, blueprint, pager, &mut members, &rows, &mut during);
        let outputs = ran.map(|result| {
            let outputs = sample_outputs(&mut members, &rows, result);
            for (member, before) in members.iter_mut().zip(computed) {
                self.prefix_cache.insert(member, &mut self.pager, before);
            }
            outputs
        });
        self.sessions.put_back(members);
        let mut outputs = outputs?;
        if let Some(pass) = self.executor.last_pass() {
            self.scheduler.note_pass(pass.rows, pass.seconds);
        }
        self.end_turns(&mut outputs);
        for &(id, _) in run {
            // Members that paused or ended have left the running state already.
            let _ = self.sessions.known_mut(id).apply(Transition::EndPass);
        }
        Ok(outputs)
    }

    /// Ends the turns that outputs report as finished: a kept session waits, another one ends.
    fn end_turns(&mut self, outputs: &mut [Output]) {
        let (scheduler, mut residency) = self.scheduling();
        for output in outputs {
            let id = output.session;
            let session = residency.sessions.known_mut(id);
            let (Some(finish), true) = (output.finish, session.state.is_running()) else {
                continue;
            };
            if session.keep {
                let ended = session.apply(Transition::EndTurn);
                ended.expect("the session ran in this pass");
                session.lifetime.touch();
                copy_to_host(&mut residency, &scheduler.spill, id);
            } else {
                residency.end(id, finish, None);
            }
        }
    }

    /// Fails the turns of the members of a failed pass. The next step returns the outputs.
    fn fail_pass(
        &mut self,
        run: &[(SessionId, usize)],
        mut outputs: Vec<Output>,
        error: EngineError,
    ) -> EngineError {
        self.executor.abort_pass();
        self.pager.end_pass();
        self.pager.drain();
        // A device that failed may have damaged pages that no session holds.
        self.pager.clear_cache();
        let (_, mut residency) = self.scheduling();
        outputs.extend(run.iter().filter_map(|&(id, _)| residency.fail(id, &error)));
        self.write_outputs(&mut outputs);
        self.deferred.extend(outputs);
        error
    }

    /// Writes outputs to the log before they are returned. An end that cannot be written is
    /// reported as a failure. A kept session stays as it is, and the log gets what it lacks with
    /// the next record that can be written; another session ends.
    fn write_outputs(&mut self, outputs: &mut [Output]) {
        let failed = self.durability.write_outputs(outputs, &mut self.sessions);
        let (_, mut residency) = self.scheduling();
        for (id, error) in failed {
            let output = outputs.iter_mut().find(|output| output.session == id);
            let output = output.expect("the session has an output");
            if output.failure.is_none() {
                if !residency.sessions.known(id).keep {
                    residency.end(id, Finish::Failed, Some((&error).into()));
                }
                output.finish = Some(Finish::Failed);
                output.failure = Some((&error).into());
                output.paused = None;
            }
        }
    }
}
