//! Helpers of the tests of KV paging: engines with little KV memory, and results of sessions that run
//! alone.

use std::path::Path;

use super::{How, open, request};
use djinn_engine::{
    Blueprint, Class, Engine, Finish, PrefixCacheSettings, Request, Sampling, Settings, Transcript,
};
use djinn_weights::MemorySettings;

/// Pseudorandom numbers. A failure prints the seed.
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (x ^ (x >> 31)) as usize % limit
    }
}

/// Creates a request with random tokens, class and sampling parameters.
pub fn random_request(folder: &Path, tokens: &[u32], random: &mut Random) -> Request {
    let prompt: Vec<u32> = (0..1 + random.below(60))
        .map(|_| tokens[random.below(tokens.len())])
        .collect();
    let class = [Class::Realtime, Class::Interactive, Class::Batch][random.below(3)];
    Request {
        sampling: Sampling {
            temperature: random.below(3) as f32 / 2.0,
            seed: random.below(1000) as u64,
            logprobs: (random.below(2) == 0).then_some(1),
            ..Sampling::default()
        },
        class,
        ..request(folder, &prompt, &[], 1 + random.below(24))
    }
}

pub fn load(folder: &Path, settings: Settings) -> Engine {
    load_in(folder, settings, MemorySettings::default())
}

/// Loads an engine with these memory settings.
pub fn load_in(folder: &Path, settings: Settings, memory: MemorySettings) -> Engine {
    let (model, backend) = (open(folder), How::default().backend());
    let blueprint = Blueprint::draw(&model, &*backend, settings, memory).unwrap();
    Engine::load(model, &*backend, blueprint, &mut |_| {}).unwrap()
}

/// Tokens, bits of log-probabilities and finish reason of a session.
pub type SessionResult = (Vec<u32>, Vec<(u32, u32)>, Option<Finish>);

pub fn result_of(transcript: &Transcript) -> SessionResult {
    let logprobs = transcript.logprobs.iter().flatten();
    let bits = logprobs.map(|l| (l.token, l.logprob.to_bits())).collect();
    (transcript.generated.clone(), bits, transcript.finish)
}

/// Runs each request alone, one after the other, without the prefix cache.
pub fn alone(folder: &Path, requests: &[Request]) -> Vec<Transcript> {
    alone_in(folder, requests, MemorySettings::default())
}

/// Runs each request alone, as [`alone`] does, with these memory settings.
pub fn alone_in(folder: &Path, requests: &[Request], memory: MemorySettings) -> Vec<Transcript> {
    let model = open(folder);
    let one = |r: &Request| Settings::for_requests(&model, std::slice::from_ref(r), 64).unwrap();
    let mut settings = one(&requests[0]);
    for request in requests {
        let more = one(request);
        settings.rows = settings.rows.max(more.rows);
        settings.context = settings.context.max(more.context);
        settings.pages = settings.pages.max(more.pages);
    }
    let mut engine = load_in(folder, settings, memory);
    engine.set_prefix_cache(PrefixCacheSettings::OFF);
    let mut run = |request: &Request| {
        let id = engine.open(request.clone()).unwrap();
        while !engine.is_idle() {
            engine.step().unwrap();
        }
        engine.close(id).unwrap()
    };
    requests.iter().map(&mut run).collect()
}

/// Returns settings for `most` sessions per pass, with device pages for one session in `share`.
pub fn tight(folder: &Path, requests: &[Request], most: usize, share: usize) -> Settings {
    let model = open(folder);
    let all = Settings::for_requests(&model, requests, 64).unwrap();
    let largest = all.context.div_ceil(all.page_tokens);
    let device = (all.pages / share).max(largest);
    Settings {
        sessions: most,
        rows: 64,
        logit_rows: most,
        pages: device,
        host_pages: all.pages + largest - device,
        ..all
    }
}

/// Loads an engine with a disk tier and `host_pages` pages in host memory, at least for two sessions.
pub fn load_with_disk(folder: &Path, settings: Settings, host_pages: usize, disk: &Path) -> Engine {
    load_with_disk_in(
        folder,
        settings,
        host_pages,
        disk,
        MemorySettings::default(),
    )
}

/// Loads an engine with a disk tier, as [`load_with_disk`] does, with these memory settings.
pub fn load_with_disk_in(
    folder: &Path,
    settings: Settings,
    host_pages: usize,
    disk: &Path,
    memory: MemorySettings,
) -> Engine {
    let (model, backend) = (open(folder), How::default().backend());
    let least = settings.context.div_ceil(settings.page_tokens);
    let settings = Settings {
        disk_pages: settings.host_pages + 2 * least,
        host_pages: host_pages.max(2 * least),
        ..settings
    };
    let mut blueprint = Blueprint::draw(&model, &*backend, settings, memory).unwrap();
    blueprint.spill_to(disk);
    Engine::load(model, &*backend, blueprint, &mut |_| {}).unwrap()
}
