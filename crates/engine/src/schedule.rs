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
    /// Paid when its turn began, or where it came in.
    pub place: u64,
    /// Passes left of its turn.
    left: u32,
}

impl Account {
    /// Of a session that comes when the first in the order stands at `clock`: it comes in
    /// behind that one by half a turn, so that however many come, the order moves on.
    pub fn new(class: Class, clock: u64) -> Self {
        let place = clock + class.price() * u64::from(TURN) / 2;
        Account {
            class,
            paid: place,
            place,
            left: 0,
        }
    }

    /// The same session after a while away: it neither has to catch up nor is ahead of the
    /// others by having been away.
    pub fn back(self, clock: u64) -> Self {
        let place = self.paid.max(clock);
        Account {
            paid: place,
            place,
            left: 0,
            ..self
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
    /// Tokens that have run, and that have not.
    pub computed: usize,
    pub pending: usize,
}

/// What a pass may take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub sessions: usize,
    pub rows: usize,
    pub page_tokens: usize,
}

/// What happens before the next pass. Sessions are told by their number in what was given.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Decision {
    /// How many pages go away of which ready session, and of which idle one.
    pub ready_away: Vec<(usize, usize)>,
    pub idle_away: Vec<(usize, usize)>,
    /// Who runs, in order, and how many tokens of it; what is away of these comes back
    /// after the others' have gone.
    pub run: Vec<(usize, usize)>,
    /// Where the first in the order stands.
    pub clock: u64,
}

/// Room that is to be found.
struct Room {
    free: usize,
    /// Pages that can still go away, since there is room for them elsewhere.
    elsewhere: usize,
}

impl Room {
    /// Takes what is missing to `wanted` pages from the `here` of somebody, as far as it
    /// can, and notes that.
    fn make(
        &mut self,
        wanted: usize,
        who: usize,
        here: &mut usize,
        away: &mut Vec<(usize, usize)>,
    ) -> usize {
        let count = wanted.saturating_sub(self.free);
        let count = count.min(*here).min(self.elsewhere);
        if count == 0 {
            return 0;
        }
        *here -= count;
        self.elsewhere -= count;
        self.free += count;
        match away.iter_mut().find(|(other, _)| *other == who) {
            Some((_, pages)) => *pages += count,
            None => away.push((who, count)),
        }
        count
    }
}

/// Decides. `idle` are the pages here of sessions that do not run now, those needed last
/// first; `free` pages are nobody's, and `elsewhere` more can go away. Sessions that
/// generate run one token, and prompts share the rows that are left, in order.
pub(crate) fn decide(
    ready: &[Ready],
    idle: &[usize],
    free: usize,
    elsewhere: usize,
    limits: Limits,
) -> Decision {
    let mut order: Vec<usize> = (0..ready.len()).collect();
    order.sort_by_key(|&i| (ready[i].account.place, ready[i].account.class, i));
    let mut decision = Decision {
        clock: order.first().map_or(0, |&i| ready[i].account.place),
        ..Decision::default()
    };
    let mut room = Room { free, elsewhere };
    let mut here: Vec<usize> = ready.iter().map(|session| session.here).collect();
    let mut idle_here = idle.to_vec();
    // Pages that those who come later, and the idle, have here.
    let mut others: usize = here.iter().sum::<usize>() + idle_here.iter().sum::<usize>();
    let mut spare_rows = limits.rows - limits.sessions.min(ready.len()).min(limits.rows);
    for (turn, &i) in order.iter().enumerate() {
        if decision.run.len() == limits.sessions {
            break;
        }
        let session = &ready[i];
        others -= here[i];
        let rows = 1 + (session.pending.max(1) - 1).min(spare_rows);
        let held = session.here + session.away;
        let all = (session.computed + rows)
            .div_ceil(limits.page_tokens)
            .max(held);
        // What was taken of it for somebody before it has to come back too.
        let needed = all - here[i];
        if needed > room.free + others.min(room.elsewhere) {
            continue;
        }
        for (who, pages) in idle_here.iter_mut().enumerate() {
            others -= room.make(needed, who, pages, &mut decision.idle_away);
        }
        for &who in order[turn + 1..].iter().rev() {
            if room.free >= needed {
                break;
            }
            others -= room.make(needed, who, &mut here[who], &mut decision.ready_away);
        }
        room.free -= needed;
        spare_rows -= rows - 1;
        decision.run.push((i, rows));
    }
    decision
}

/// How many of those that wait to hold pages may: in order of where they came in, as long
/// as either all pages that all may come to fit where passes run, or there is room to let
/// one session go before another comes back. Then whoever is first can always run. Nobody
/// overtakes: a large one would never get in. Both are told by the pages they may come to.
pub(crate) fn admitted(
    held: impl Iterator<Item = usize>,
    queue: impl Iterator<Item = usize>,
    device: usize,
    host: usize,
) -> usize {
    let (mut sum, mut largest) = held.fold((0, 0), |(sum, most), n| (sum + n, most.max(n)));
    let fits = |pages: usize| {
        (sum, largest) = (sum + pages, largest.max(pages));
        sum <= device || sum + largest <= device + host
    };
    queue.map(fits).take_while(|fits| *fits).count()
}

#[cfg(test)]
mod tests {
    use djinn_memory::{PageTable, Pages};
    use proptest::prelude::*;

    use super::{Account, Class, Limits, Ready, TURN, admitted, decide};

    const CLASSES: [Class; 3] = [Class::Realtime, Class::Interactive, Class::Batch];

    fn ready(place: u64, here: usize, away: usize, pending: usize) -> Ready {
        Ready {
            account: Account {
                place,
                ..Account::new(Class::Interactive, 0)
            },
            here,
            away,
            computed: 2 * (here + away),
            pending,
        }
    }

    fn limits(sessions: usize, rows: usize) -> Limits {
        Limits {
            sessions,
            rows,
            page_tokens: 2,
        }
    }

    #[test]
    fn who_paid_least_comes_first_and_the_last_makes_room() {
        let all = [ready(9, 4, 0, 1), ready(3, 0, 5, 1), ready(6, 4, 0, 1)];
        // Six pages for the second: two are free, three of an idle session, one of the
        // first, which comes last. The third finds one more there.
        let decision = decide(&all, &[3], 2, 100, limits(8, 8));
        assert_eq!(decision.ready_away, [(0, 2)]);
        assert_eq!(decision.idle_away, [(0, 3)]);
        assert_eq!((decision.run, decision.clock), (vec![(1, 1), (2, 1)], 3));
        // With room for nothing elsewhere, those run that are here.
        let decision = decide(&all, &[3], 2, 0, limits(8, 8));
        assert_eq!(
            (decision.run, decision.idle_away),
            (vec![(2, 1), (0, 1)], vec![])
        );
        assert_eq!(decide(&all, &[3], 2, 0, limits(1, 8)).run, [(2, 1)]);
    }

    #[test]
    fn generating_sessions_never_wait_for_prompts() {
        let check = |pending: &[usize], rows: usize, expect: &[usize]| {
            let all: Vec<Ready> = (0..)
                .zip(pending)
                .map(|(i, &n)| ready(i, 0, 0, n))
                .collect();
            let run = decide(&all, &[], 1000, 0, limits(rows, rows)).run;
            let found: Vec<usize> = run.iter().map(|(_, rows)| *rows).collect();
            assert_eq!(found, expect, "{pending:?} in {rows}");
        };
        check(&[100, 1, 1], 8, &[6, 1, 1]);
        check(&[3, 100, 1], 8, &[3, 4, 1]);
        check(&[5], 512, &[5]);
        check(&[9, 9], 2, &[1, 1]);
        check(&[9, 9, 9], 2, &[1, 1]);
    }

    proptest! {
        #[test]
        fn everybody_moves_and_no_row_is_wasted(
            pending in prop::collection::vec(1usize..50, 1..10), extra in 0usize..100,
        ) {
            let rows = pending.len() + extra;
            let all: Vec<Ready> = (0..).zip(&pending).map(|(i, &n)| ready(i, 0, 0, n)).collect();
            let run = decide(&all, &[], 1000, 0, limits(10, rows)).run;
            prop_assert!(run.iter().all(|&(i, rows)| 1 <= rows && rows <= pending[i]));
            let total: usize = run.iter().map(|(_, rows)| rows).sum();
            prop_assert_eq!((total, run.len()), (rows.min(pending.iter().sum()), pending.len()));
        }
    }

    /// One of these runs at a time, and the clock with them.
    fn run_one(accounts: &mut [Account], clock: &mut u64) -> usize {
        let all: Vec<Ready> = accounts
            .iter()
            .map(|&account| Ready {
                account,
                here: 0,
                away: 1,
                computed: 1,
                pending: 1,
            })
            .collect();
        let decision = decide(&all, &[], 1, 9, limits(3, 3));
        let [(chosen, 1)] = decision.run[..] else {
            panic!("one runs")
        };
        *clock = decision.clock.max(*clock);
        accounts[chosen].ran();
        chosen
    }

    #[test]
    fn shares_are_those_of_the_classes() {
        let mut accounts = CLASSES.map(|class| Account::new(class, 0));
        let (mut runs, mut clock) = ([0u32; 3], 0);
        for _ in 0..10_000 {
            runs[run_one(&mut accounts, &mut clock)] += 1;
        }
        let share = |i: usize| f64::from(runs[i]) / f64::from(runs[2]);
        let near = |share: f64, expect: f64| (share / expect - 1.0).abs() < 0.05;
        assert!(near(share(0), 8.0) && near(share(1), 4.0), "{runs:?}");
    }

    #[test]
    fn a_long_session_is_not_starved_by_short_ones_that_keep_coming() {
        // Beside two others its share would be 1/3, 1/9 and 1/17.
        for (long, short, least) in [
            (Class::Interactive, Class::Interactive, 0.25),
            (Class::Batch, Class::Interactive, 0.08),
            (Class::Batch, Class::Realtime, 0.04),
        ] {
            let mut clock = 0;
            let mut accounts = vec![Account::new(long, 0), Account::new(short, 0)];
            accounts.push(Account::new(short, 0));
            let mut ages = [0, 0, 0];
            let (mut runs, passes) = (0, 20_000);
            for _ in 0..passes {
                let chosen = run_one(&mut accounts, &mut clock);
                runs += u32::from(chosen == 0);
                ages[chosen] += 1;
                // A short one ends after ten passes, and another comes at once.
                if chosen > 0 && ages[chosen] % 10 == 0 {
                    accounts[chosen] = Account::new(short, clock);
                }
            }
            let share = f64::from(runs) / f64::from(passes);
            assert!(share > least, "{long:?} beside {short:?}: {share}");
        }
    }

    #[test]
    fn nobody_overtakes_and_a_swap_stays_possible() {
        let check = |held: &[usize], queue: &[usize], device, host, expect| {
            let (held, queue) = (held.iter().copied(), queue.iter().copied());
            assert_eq!(admitted(held, queue, device, host), expect);
        };
        check(&[], &[4, 4], 8, 0, 2);
        check(&[], &[4, 4, 1], 8, 0, 2);
        check(&[4], &[9, 1], 8, 0, 0);
        // Nine of thirteen with room for the largest: four of the host's stay free.
        check(&[4], &[4, 1], 8, 5, 2);
        check(&[4, 4], &[2], 8, 5, 0);
    }

    /// A session of the simulation.
    struct Simulated {
        table: PageTable,
        account: Account,
        most: usize,
        tokens: usize,
        wanted: usize,
        /// Steps until it comes, or comes back.
        waits: usize,
        admitted: bool,
        /// Passes in which it could have run since it last did.
        hungry: usize,
    }

    impl Simulated {
        fn is_ready(&self) -> bool {
            self.waits == 0 && self.tokens < self.wanted
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(300))]
        /// Whatever comes and waits: pages are never more than there are nor anybody
        /// else's, the first in the order always runs, everybody's turn comes in time, and
        /// all come to their end.
        #[test]
        fn everybody_gets_there(
            device in 4usize..24, host in 0usize..60, most in 1usize..6, rows in 6usize..20,
            asked in prop::collection::vec((1usize..60, 0usize..3, 0usize..60), 1..20),
            mut random: u64,
        ) {
            const PAGE: usize = 2;
            let limits = Limits { sessions: most, rows, page_tokens: PAGE };
            let mut pages = Pages::new(device, host);
            let mut draw = |below: usize| {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (random >> 33) as usize % below
            };
            let mut clock = 0;
            let mut all: Vec<Simulated> = asked.iter().map(|&(wanted, class, comes)| {
                let wanted = wanted.min(device * PAGE);
                Simulated {
                    table: PageTable::new(PAGE),
                    account: Account::new(CLASSES[class], 0),
                    most: wanted.div_ceil(PAGE),
                    tokens: 0,
                    wanted,
                    waits: 1 + comes,
                    admitted: false,
                    hungry: 0,
                }
            }).collect();
            // Everybody else may have a turn, and those who come back another one.
            let bound = 4 * TURN as usize * all.len();
            for step in 0.. {
                prop_assert!(step < 100_000, "it never ends");
                if all.iter().all(|s| s.tokens == s.wanted) {
                    break;
                }
                for s in all.iter_mut().filter(|s| s.waits > 0) {
                    s.waits -= 1;
                    if s.waits == 0 {
                        s.account = match s.tokens {
                            0 => Account::new(s.account.class, clock),
                            _ => s.account.back(clock),
                        };
                    }
                }
                let mut queue: Vec<usize> =
                    (0..all.len()).filter(|&i| all[i].is_ready() && !all[i].admitted).collect();
                queue.sort_by_key(|&i| (all[i].account.place, i));
                let held = all.iter().filter(|s| s.admitted).map(|s| s.most);
                let count = admitted(held, queue.iter().map(|&i| all[i].most), device, host);
                for &i in &queue[..count] {
                    all[i].admitted = true;
                    all[i].account = all[i].account.back(clock);
                }
                let is_ready = |s: &Simulated| s.admitted && s.is_ready();
                let ids: Vec<usize> = (0..all.len()).filter(|&i| is_ready(&all[i])).collect();
                let idle: Vec<usize> = (0..all.len()).filter(|&i| !is_ready(&all[i])).collect();
                let of = |s: &Simulated| Ready {
                    account: s.account,
                    here: s.table.len() - s.table.away(),
                    away: s.table.away(),
                    computed: s.tokens,
                    // The first tokens are a prompt.
                    pending: if s.tokens == 0 { s.wanted.div_ceil(2) } else { 1 },
                };
                let ready: Vec<Ready> = ids.iter().map(|&i| of(&all[i])).collect();
                let idle_here: Vec<usize> = idle.iter().map(|&i| of(&all[i]).here).collect();
                let copies: usize = all.iter().map(|s| s.table.copies()).sum();
                let elsewhere = pages.host.free() + copies;
                let decision = decide(&ready, &idle_here, pages.device.free(), elsewhere, limits);
                let first = (0..ids.len()).min_by_key(|&i| {
                    (ready[i].account.place, ready[i].account.class, i)
                });
                prop_assert_eq!(decision.run.first().map(|r| r.0), first, "the first runs");
                clock = clock.max(decision.clock);
                let away = decision.ready_away.iter().map(|&(i, n)| (ids[i], n));
                let away = away.chain(decision.idle_away.iter().map(|&(i, n)| (idle[i], n)));
                for (i, count) in away.collect::<Vec<_>>() {
                    let before = all[i].table.away();
                    let copied = all[i].table.copies().min(count);
                    let mut wanted = (count - copied).saturating_sub(pages.host.free());
                    for other in (0..all.len()).filter(|&other| other != i) {
                        wanted -= all[other].table.drop_copies(wanted, &mut pages);
                    }
                    all[i].table.send_away(count, &mut pages);
                    let gone = all[i].table.away() - before;
                    prop_assert_eq!(gone, count, "there is room for what goes");
                }
                for &i in &ids {
                    all[i].hungry += 1;
                }
                for &(i, rows) in &decision.run {
                    let s = &mut all[ids[i]];
                    s.table.bring_back(&mut pages).expect("room was made");
                    s.table.write_from(s.tokens, &mut pages);
                    s.tokens += rows;
                    s.table.grow_to(s.tokens, &mut pages.device).expect("room was made");
                    s.account.ran();
                    s.hungry = 0;
                    if s.tokens == s.wanted {
                        s.table.release(&mut pages);
                        s.admitted = false;
                    } else if draw(9) == 0 {
                        s.waits = 1 + draw(40);
                    }
                }
                prop_assert!(all.iter().all(|s| s.hungry <= bound), "somebody starves");
                pages.check_integrity(all.iter().map(|s| &s.table));
            }
            prop_assert_eq!((pages.device.free(), pages.host.free()), (device, host));
        }
    }
}
