//! The scheduler: which sessions run in the next pass, and whose pages make room for them.
//!
//! Pure logic over numbers. A session pays for every pass it runs in, a price that its
//! class sets, and those that have paid least come first: whoever does not run keeps its
//! place while the others move on, so everybody's turn comes. A turn lasts several passes,
//! during which a session's place does not change: pages are worth moving only if they
//! then stay for a while.

/// How urgent a session is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Class {
    /// Somebody listens: eight times the share of a batch.
    Realtime,
    /// Somebody reads: four times the share.
    #[default]
    Interactive,
    /// Nobody waits.
    Batch,
}

impl Class {
    /// What a pass costs.
    fn price(self) -> u64 {
        match self {
            Class::Realtime => 1,
            Class::Interactive => 2,
            Class::Batch => 8,
        }
    }
}

/// Passes of a turn.
const TURN: u32 = 16;

/// What a session has paid, and where that puts it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Account {
    pub class: Class,
    /// Paid so far.
    paid: u64,
    /// Paid when its turn began.
    place: u64,
    /// Passes left of its turn.
    left: u32,
}

impl Account {
    /// Of a session that comes, or comes back, while others have places: it neither has to
    /// catch up nor is ahead of them by having been away.
    pub fn new(class: Class, others: impl Iterator<Item = Account>) -> Self {
        let place = others.map(|other| other.place).min().unwrap_or(0);
        Account {
            class,
            paid: place,
            place,
            left: 0,
        }
    }

    /// The same session after a while away.
    pub fn back(self, others: impl Iterator<Item = Account>) -> Self {
        let fresh = Account::new(self.class, others);
        let place = fresh.place.max(self.paid);
        Account {
            paid: place,
            place,
            ..fresh
        }
    }

    /// The session ran in a pass.
    pub fn ran(&mut self) {
        if self.left == 0 {
            self.left = TURN;
        }
        self.left -= 1;
        self.paid += self.class.price();
        if self.left == 0 {
            self.place = self.paid;
        }
    }
}

/// A session with tokens to run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ready {
    pub account: Account,
    /// Its pages where passes run, and elsewhere.
    pub here: usize,
    pub away: usize,
    /// Pages its next tokens need beyond those.
    pub missing: usize,
}

/// What happens before the next pass. Sessions are told by their number in what was given.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Decision {
    /// How many pages go away of which ready session, and of which idle one.
    pub ready_away: Vec<(usize, usize)>,
    pub idle_away: Vec<(usize, usize)>,
    /// Who runs, in order; what is away of these comes back after the others' have gone.
    pub run: Vec<usize>,
}

/// Room that is to be found.
struct Room {
    free: usize,
    /// Pages that can still go away, since there is room for them elsewhere.
    elsewhere: usize,
}

impl Room {
    /// Takes up to `wanted` of `here` pages from somebody, and says how many.
    fn take(&mut self, wanted: usize, here: &mut usize) -> usize {
        let count = wanted.min(*here).min(self.elsewhere);
        *here -= count;
        self.elsewhere -= count;
        self.free += count;
        count
    }
}

/// Decides. `idle` are the pages here of sessions that run no more or not now, those
/// needed last first; `free` pages are nobody's, `elsewhere` more can go away, and a pass
/// takes `most` sessions.
pub(crate) fn decide(
    ready: &[Ready],
    idle: &[usize],
    free: usize,
    elsewhere: usize,
    most: usize,
) -> Decision {
    let mut decision = Decision::default();
    let mut room = Room { free, elsewhere };
    let mut order: Vec<usize> = (0..ready.len()).collect();
    order.sort_by_key(|&i| (ready[i].account.place, ready[i].account.class, i));
    let mut here: Vec<usize> = ready.iter().map(|session| session.here).collect();
    let mut idle_here = idle.to_vec();
    for (turn, &i) in order.iter().enumerate() {
        if decision.run.len() == most {
            break;
        }
        // What was taken of it for somebody before it has to come back too.
        let gone = ready[i].here - here[i];
        let needed = ready[i].away + gone + ready[i].missing;
        let later = order[turn + 1..].iter().rev();
        let others: usize = later.clone().map(|&other| here[other]).sum();
        let idle_pages: usize = idle_here.iter().sum();
        // Its own pages elsewhere make room there only once they are back.
        let possible = room.free + (idle_pages + others).min(room.elsewhere);
        if needed > possible {
            continue;
        }
        for (who, pages) in idle_here.iter_mut().enumerate() {
            let count = room.take(needed.saturating_sub(room.free), pages);
            note(&mut decision.idle_away, who, count);
        }
        for &who in later {
            let count = room.take(needed.saturating_sub(room.free), &mut here[who]);
            note(&mut decision.ready_away, who, count);
        }
        room.free -= needed;
        decision.run.push(i);
    }
    decision
}

/// Adds to what goes away of somebody.
fn note(all: &mut Vec<(usize, usize)>, who: usize, count: usize) {
    if count == 0 {
        return;
    }
    match all.iter_mut().find(|(other, _)| *other == who) {
        Some((_, pages)) => *pages += count,
        None => all.push((who, count)),
    }
}

/// Whether another session may hold pages beside those that do, of which each may come to
/// so many: either all fit where passes run, or there is room to let one of them go before
/// another comes back. Then whoever comes first can always run.
pub(crate) fn admits(
    sum: usize,
    largest: usize,
    another: usize,
    device: usize,
    host: usize,
) -> bool {
    let (sum, largest) = (sum + another, largest.max(another));
    sum <= device || sum + largest <= device + host
}

#[cfg(test)]
mod tests {
    use djinn_memory::{PageTable, Pages};
    use proptest::prelude::*;

    use super::{Account, Class, Decision, Ready, TURN, admits, decide};

    fn account(class: Class, place: u64) -> Account {
        Account {
            class,
            paid: place,
            place,
            left: 0,
        }
    }

    fn ready(place: u64, here: usize, away: usize, missing: usize) -> Ready {
        Ready {
            account: account(Class::Interactive, place),
            here,
            away,
            missing,
        }
    }

    #[test]
    fn who_paid_least_comes_first_and_the_last_makes_room() {
        let all = [ready(9, 4, 0, 0), ready(3, 0, 5, 1), ready(6, 4, 0, 1)];
        // Six pages for the second: two are free, three of an idle session, one of the
        // first, which comes last. The third finds one more there.
        let decision = decide(&all, &[3], 2, 100, 8);
        let expect = Decision {
            ready_away: vec![(0, 2)],
            idle_away: vec![(0, 3)],
            run: vec![1, 2],
        };
        assert_eq!(decision, expect);
        // With room for nothing elsewhere, those run that are here.
        let decision = decide(&all, &[3], 2, 0, 8);
        assert_eq!((decision.run, decision.idle_away), (vec![2, 0], vec![]));
        assert_eq!(decide(&all, &[3], 2, 0, 1).run, [2]);
    }

    #[test]
    fn shares_are_those_of_the_classes() {
        let classes = [Class::Realtime, Class::Interactive, Class::Batch];
        let mut accounts = classes.map(|class| account(class, 0));
        let mut runs = [0u32; 3];
        for _ in 0..10_000 {
            // Room for one at a time.
            let all = accounts.map(|account| Ready {
                account,
                here: 0,
                away: 1,
                missing: 0,
            });
            let [chosen] = decide(&all, &[], 1, 9, 3).run[..] else {
                panic!("one runs")
            };
            accounts[chosen].ran();
            runs[chosen] += 1;
        }
        let share = |i: usize| f64::from(runs[i]) / f64::from(runs[2]);
        assert!(
            (share(0) - 8.0).abs() < 0.3 && (share(1) - 4.0).abs() < 0.2,
            "{runs:?}"
        );
    }

    /// A session of the simulation.
    struct Simulated {
        table: PageTable,
        account: Account,
        most: usize,
        tokens: usize,
        wanted: usize,
        /// Steps it still waits; it holds pages only once it was admitted.
        waits: usize,
        admitted: bool,
        /// Steps since it last ran while it was ready.
        hungry: usize,
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(300))]
        /// Whatever comes and waits: pages are never more than there are nor anybody
        /// else's, everybody's turn comes in time, and all come to their end.
        #[test]
        fn everybody_gets_there(
            device in 4usize..24, host in 0usize..60, most in 1usize..6,
            asked in prop::collection::vec((1usize..20, 0u8..3, 0usize..30, 1usize..5), 1..14),
            mut random: u64,
        ) {
            const PAGE: usize = 2;
            let mut pages = Pages::new(device, host);
            let mut draw = |below: usize| {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (random >> 33) as usize % below
            };
            let mut all: Vec<Simulated> = Vec::new();
            for &(wanted, class, arrives, _) in &asked {
                let class = [Class::Realtime, Class::Interactive, Class::Batch][class as usize];
                let wanted = wanted.min(device * PAGE);
                all.push(Simulated {
                    table: PageTable::new(PAGE),
                    account: Account::new(class, std::iter::empty()),
                    most: wanted.div_ceil(PAGE),
                    tokens: 0,
                    wanted,
                    waits: arrives,
                    admitted: false,
                    hungry: 0,
                });
            }
            let bound = 8 * TURN as usize * 16 * all.len() + 100;
            for step in 0.. {
                prop_assert!(step < 40 * bound, "it never ends");
                let mut due = false;
                for i in 0..all.len() {
                    due |= all[i].tokens < all[i].wanted;
                    if all[i].waits > 0 {
                        all[i].waits -= 1;
                        if all[i].waits == 0 {
                            let others: Vec<Account> = all.iter().map(|s| s.account).collect();
                            all[i].account = all[i].account.back(others.into_iter());
                        }
                    }
                    if all[i].waits == 0 && !all[i].admitted && all[i].tokens < all[i].wanted {
                        let held: Vec<usize> =
                            all.iter().filter(|s| s.admitted).map(|s| s.most).collect();
                        let (sum, largest) = (held.iter().sum(), held.iter().copied().max());
                        all[i].admitted =
                            admits(sum, largest.unwrap_or(0), all[i].most, device, host);
                    }
                }
                if !due {
                    break;
                }
                let is_ready = |s: &Simulated| s.admitted && s.waits == 0 && s.tokens < s.wanted;
                let ids: Vec<usize> = (0..all.len()).filter(|&i| is_ready(&all[i])).collect();
                let idle: Vec<usize> = (0..all.len()).filter(|&i| !is_ready(&all[i])).collect();
                let of = |s: &Simulated| Ready {
                    account: s.account,
                    here: s.table.len() - s.table.away(),
                    away: s.table.away(),
                    missing: s.table.missing(s.tokens + 1),
                };
                let ready: Vec<Ready> = ids.iter().map(|&i| of(&all[i])).collect();
                let idle_here: Vec<usize> = idle.iter().map(|&i| of(&all[i]).here).collect();
                let decision =
                    decide(&ready, &idle_here, pages.device.free(), pages.host.free(), most);
                prop_assert!(ids.is_empty() || !decision.run.is_empty(), "somebody runs");
                let away = decision.ready_away.iter().map(|&(i, n)| (ids[i], n));
                let away = away.chain(decision.idle_away.iter().map(|&(i, n)| (idle[i], n)));
                for (i, count) in away.collect::<Vec<_>>() {
                    let moves = all[i].table.send_away(count, &mut pages);
                    prop_assert_eq!(moves.len(), count, "there is room for what goes");
                }
                for s in &mut all {
                    s.hungry += usize::from(is_ready(s));
                }
                for &i in &decision.run {
                    let s = &mut all[ids[i]];
                    s.table.bring_back(&mut pages).expect("room was made");
                    let tokens = s.tokens + 1;
                    s.table.grow_to(tokens, &mut pages.device).expect("room was made");
                    s.tokens = tokens;
                    s.account.ran();
                    s.hungry = 0;
                    if s.tokens == s.wanted {
                        s.table.release(&mut pages);
                        s.admitted = false;
                    } else if draw(asked[ids[i]].3 * 4) == 0 {
                        s.waits = 1 + draw(40);
                    }
                }
                prop_assert!(all.iter().all(|s| s.hungry <= bound), "somebody starves");
                pages.check_integrity(all.iter().map(|s| &s.table));
            }
            prop_assert_eq!(pages.device.free(), device);
            prop_assert_eq!(pages.host.free(), host);
        }
    }
}
