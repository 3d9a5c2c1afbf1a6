//! Which buffers a pass still needs at a point: all that has to be kept of a row so that it
//! can go on from there.

use std::collections::BTreeSet;

use crate::hook::Site;
use crate::program::{Buf, Op, Program};

/// A hook's place in the pass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stop {
    /// Which hook.
    pub site: Site,
    /// What is there.
    pub buf: Buf,
    /// The operation that comes next, by its place in [`Program::steps`].
    pub next: usize,
    /// What the operations from there on read of what was written before.
    pub live: Vec<Buf>,
}

impl Program {
    /// Every hook at which a row can stop, in order of the pass. Attention patterns are not
    /// among them: they are no buffer of the pass.
    pub fn stops(&self) -> Vec<Stop> {
        let ops: Vec<&Op> = self.ops().collect();
        // Whoever goes through the head wants its logits.
        let mut live = BTreeSet::from([Buf::Logits]);
        let mut stops = Vec::new();
        for (at, op) in ops.iter().enumerate().rev() {
            if let Op::Hook { site, buf } = **op {
                let mut live = live.clone();
                live.insert(buf);
                stops.push(Stop {
                    site,
                    buf,
                    next: at + 1,
                    live: live.into_iter().collect(),
                });
            }
            let (reads, writes) = op.touches();
            if let Some(to) = writes {
                live.remove(&to);
            }
            live.extend(reads);
        }
        stops.reverse();
        stops
    }
}

impl Op {
    /// The buffers it reads, and the one it writes without regard to what was there.
    fn touches(&self) -> (Vec<Buf>, Option<Buf>) {
        match *self {
            Op::Embed { to, .. } => (vec![], Some(to)),
            Op::EmbedPositions { to, .. } => (vec![to], None),
            Op::Norm { from, to, .. }
            | Op::Linear { from, to, .. }
            | Op::Split { from, to, .. }
            | Op::Activate { from, to, .. } => (vec![from], Some(to)),
            Op::Rope { buf } => (vec![buf], None),
            Op::Attend { .. } => (vec![Buf::Q, Buf::K, Buf::V], Some(Buf::Z)),
            Op::Gate { gate, up, to, .. } => (vec![gate, up], Some(to)),
            Op::Add { from, to } => (vec![from, to], None),
            Op::Experts {
                from, router, to, ..
            } => (vec![from, router], Some(to)),
            Op::Hook { .. } => (vec![], None),
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::hook::Site;
    use crate::program::Buf;
    use crate::shapes::Shape;

    #[test]
    fn what_is_needed_from_a_hook_on() {
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
        // Attention and MLP beside each other: what one read, the other still will.
        let gptj = |site| live("gpt-j-6b?layers=2", site);
        assert_eq!(
            gptj(Site::AttnOut(1)),
            [Buf::Resid, Buf::Norm, Buf::AttnOut]
        );
    }

    #[test]
    fn every_hook_but_patterns_is_a_stop() {
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
