//! Liveness: the buffers that a row still needs at each hook, so that a pass can stop there and
//! resume later.

use std::collections::BTreeSet;

use super::Program;
use super::op::{Buf, Op};
use super::site::Site;

/// A hook at which a row can stop, and the state it needs to resume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StopPoint {
    /// Name of the hook.
    pub site: Site,
    /// Buffer at the hook.
    pub buf: Buf,
    /// Index of the operation to resume with, in [`Program::steps`].
    pub next: usize,
    /// Buffers that the remaining operations read before they write them.
    pub live: Vec<Buf>,
}

impl Program {
    /// Returns every hook at which a row can stop, in order of the pass. Attention patterns are
    /// not included, because no buffer holds them.
    pub fn stops(&self) -> Vec<StopPoint> {
        let ops: Vec<&Op> = self.ops().collect();
        // The caller reads the logits after the last operation.
        let mut live = BTreeSet::from([Buf::Logits]);
        let mut stops = Vec::new();
        for (at, op) in ops.iter().enumerate().rev() {
            if let Op::Hook { site, buf } = **op {
                let mut live = live.clone();
                live.insert(buf);
                stops.push(StopPoint {
                    site,
                    buf,
                    next: at + 1,
                    live: live.into_iter().collect(),
                });
            }
            let (reads, overwritten) = op.buffers();
            if let Some(buf) = overwritten {
                live.remove(&buf);
            }
            live.extend(reads);
        }
        stops.reverse();
        stops
    }
}

#[cfg(test)]
mod tests {
    use super::{Buf, Site};
    use crate::shapes::Shape;

    #[test]
    fn live_buffers_at_each_kind_of_hook() {
        let live = |shape: &str, site: Site| {
            let (program, _) = Shape::parse(shape).unwrap().build().unwrap();
            let stops = program.stops();
            stops
                .into_iter()
                .find(|stop| stop.site == site)
                .unwrap()
                .live
        };
        let llama = |site| live("llama-2-7b?layers=2", site);
        assert_eq!(llama(Site::Embed), [Buf::Resid]);
        assert_eq!(llama(Site::ResidPost(0)), [Buf::Resid]);
        assert_eq!(llama(Site::Q(1)), [Buf::Resid, Buf::Q, Buf::K, Buf::V]);
        assert_eq!(llama(Site::Z(1)), [Buf::Resid, Buf::Z]);
        assert_eq!(llama(Site::MlpPre(0)), [Buf::Resid, Buf::Norm, Buf::Pre]);
        assert_eq!(llama(Site::MlpOut(0)), [Buf::Resid, Buf::MlpOut]);
        assert_eq!(llama(Site::Normalized), [Buf::Final]);
        assert_eq!(llama(Site::Logits), [Buf::Logits]);
        // With attention and MLP in parallel, the MLP still reads the norm after attention.
        let gptj = |site| live("gpt-j-6b?layers=2", site);
        assert_eq!(
            gptj(Site::AttnOut(1)),
            [Buf::Resid, Buf::Norm, Buf::AttnOut]
        );
    }

    #[test]
    fn every_hook_except_patterns_is_a_stop() {
        let (program, _) = Shape::parse("mixtral-8x7b?layers=2")
            .unwrap()
            .build()
            .unwrap();
        let mut hooks = program.hooks();
        hooks.retain(|site| !matches!(site, Site::Pattern(_)));
        let stops: Vec<Site> = program.stops().iter().map(|stop| stop.site).collect();
        assert_eq!(stops, hooks);
    }
}
