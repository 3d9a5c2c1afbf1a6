//! The prefix cache: sessions with equal beginnings share KV pages, also with sessions that have
//! ended.

use djinn_kv::{PageContent, Pager};

use crate::session::{Session, table::SessionTable};

/// Sessions that share the pages of equal beginnings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SharePrefixes {
    /// Sessions of one owner, because the speed of a prompt must not reveal to one owner what
    /// another has sent.
    #[default]
    Owner,
    /// Sessions of all owners.
    All,
}

/// Settings of the prefix cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PrefixCacheSettings {
    /// Sessions that share pages.
    pub share: SharePrefixes,
    /// Maximum number of bytes of pages that no session holds, of all tiers together. `None` lets
    /// the sizes of the tiers limit them; with 0, sessions share pages only while one of them is
    /// open.
    pub limit: Option<u64>,
    /// Maximum number of bytes of pages that a state folder keeps for the next process; `None` is
    /// [`SAVED`](Self::SAVED).
    pub saved: Option<u64>,
}

impl PrefixCacheSettings {
    /// Default maximum number of bytes of pages in a state folder.
    pub const SAVED: u64 = 4_000_000_000;

    /// Sessions share pages only while one of them is open. Benchmarks use this, so that a repeated
    /// prompt is computed again.
    pub const OFF: Self = PrefixCacheSettings {
        share: SharePrefixes::Owner,
        limit: Some(0),
        saved: Some(0),
    };
}

/// Numbers of the prefix cache since the start, and its size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PrefixCacheStats {
    /// Number of times that a session with tokens to compute was looked up.
    pub lookups: usize,
    /// Number of those lookups that found at least one page.
    pub hits: usize,
    /// Number of tokens that sessions did not compute because the cache had their pages.
    pub tokens_reused: usize,
    /// Number of pages that left the cache because their frames were needed.
    pub pages_evicted: u64,
    /// Bytes of pages on the device that no session holds.
    pub device_bytes: u64,
    /// Bytes of pages in host memory that no session holds.
    pub host_bytes: u64,
    /// Bytes of pages on disk that no session holds.
    pub disk_bytes: u64,
}

/// Sharing of pages between sessions, and how many tokens it saved.
#[derive(Debug)]
pub(crate) struct PrefixCache {
    settings: PrefixCacheSettings,
    /// Whether pages of generated tokens equal those of the same tokens in a prompt.
    phases_agree: bool,
    lookups: usize,
    hits: usize,
    reused: usize,
}

impl PrefixCache {
    /// Creates the cache of a device on which the phases agree, or do not.
    pub fn new(phases_agree: bool) -> Self {
        PrefixCache {
            settings: PrefixCacheSettings::default(),
            phases_agree,
            lookups: 0,
            hits: 0,
            reused: 0,
        }
    }

    /// Changes the settings. Must be called before the first session is opened.
    pub fn set(&mut self, settings: PrefixCacheSettings) {
        self.settings = settings;
    }

    /// Whether pages of all owners have one scope.
    pub fn shares_all(&self) -> bool {
        self.settings.share == SharePrefixes::All
    }

    /// Maximum number of bytes of pages that a state folder keeps.
    pub fn saved_limit(&self) -> u64 {
        match self.settings.limit {
            Some(0) => 0,
            _ => self.settings.saved.unwrap_or(PrefixCacheSettings::SAVED),
        }
    }

    /// Number of tokens that sessions did not compute because the cache had their pages.
    pub fn reused(&self) -> usize {
        self.reused
    }

    /// Numbers since the start, and the size of the cache for pages of `page_bytes` bytes.
    pub fn stats(&self, pager: &Pager, page_bytes: u64) -> PrefixCacheStats {
        let cached = pager.pages().cache_stats();
        let bytes = |pages: usize| pages as u64 * page_bytes;
        PrefixCacheStats {
            lookups: self.lookups,
            hits: self.hits,
            tokens_reused: self.reused,
            pages_evicted: cached.evicted,
            device_bytes: bytes(cached.device),
            host_bytes: bytes(cached.host),
            disk_bytes: bytes(cached.disk),
        }
    }

    /// Gives ready sessions the pages of their next tokens that other sessions have computed.
    pub fn lookup(&mut self, sessions: &mut SessionTable, pager: &mut Pager) {
        // A session that is resumed from a pause continues with its own pages.
        let can = |session: &&mut Session| session.is_ready() && session.paused().is_none();
        for session in sessions.iter_mut().filter(can) {
            let start = session.computed;
            self.reuse(session, pager);
            let reused = session.computed - start;
            // An input counts once, however many passes it needs.
            let is_new = session.pending() + reused > 1 && !session.was_looked_up;
            self.lookups += usize::from(is_new);
            self.hits += usize::from(is_new && reused > 0);
            session.was_looked_up = session.pending() > 1;
            session.adopt(reused);
            self.reused += reused;
        }
    }

    /// Advances a session over pages that other sessions have computed.
    fn reuse(&self, session: &mut Session, pager: &mut Pager) {
        let page = session.pages.page_tokens();
        loop {
            let at = session.computed / page;
            let end = (at + 1) * page;
            // The last token always runs, because the next one is sampled from its logits.
            let is_shared = end < session.tokens.len() && end <= session.shares;
            // Tokens that may pause at a hook must run.
            if !is_shared || session.may_pause(session.computed..end) {
                return;
            }
            let content = self.page_content(session, at);
            if !pager.lookup_prefix(&mut session.pages, at, &content) {
                return;
            }
            session.computed = end;
        }
    }

    /// Adds the pages to the cache that a session has filled since it had computed `before`
    /// tokens.
    pub fn insert(&self, session: &mut Session, pager: &mut Pager, before: usize) {
        let page = session.pages.page_tokens();
        let filled = session.computed.min(session.shares) / page;
        for at in before / page..filled {
            let content = self.page_content(session, at);
            pager.insert_prefix(&mut session.pages, at, content);
        }
    }

    /// Returns the key of a page: its tokens, and the owner unless owners share.
    fn page_content(&self, session: &Session, at: usize) -> PageContent {
        let page = session.pages.page_tokens();
        let tokens = at * page..(at + 1) * page;
        let is_prompt = |position| self.phases_agree || session.is_given(position);
        let tokens = tokens.map(|position| (session.tokens[position], is_prompt(position)));
        let scope = match self.settings.share {
            SharePrefixes::Owner => session.owner.as_str(),
            SharePrefixes::All => "",
        };
        PageContent::new(scope, tokens)
    }
}
