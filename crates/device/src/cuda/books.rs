//! Who has what of a card's memory, of this process: what was lent, and what its driver keeps
//! for itself, which can be seen only while nothing is lent.

use std::sync::{Mutex, MutexGuard, PoisonError};

pub(super) struct Books(Mutex<Shares>);

struct Shares {
    /// Bytes that context, kernels and libraries take, as last seen.
    kept: u64,
    lent: u64,
}

impl Books {
    pub(super) fn new(kept: u64) -> Self {
        Books(Mutex::new(Shares { kept, lent: 0 }))
    }

    /// What the driver keeps: as `look` finds it while nothing is lent, else as last seen.
    pub(super) fn kept(&self, look: impl FnOnce() -> Option<u64>) -> u64 {
        let mut shares = self.open();
        if shares.lent == 0
            && let Some(kept) = look()
        {
            shares.kept = kept;
        }
        shares.kept
    }

    /// Notes what `take` takes, where it comes by it.
    pub(super) fn lend<T, E>(
        &self,
        bytes: u64,
        take: impl FnOnce() -> Result<T, E>,
    ) -> Result<T, E> {
        let mut shares = self.open();
        let taken = take()?;
        shares.lent += bytes;
        Ok(taken)
    }

    /// Notes what `give` gives back.
    pub(super) fn take_back(&self, bytes: u64, give: impl FnOnce()) {
        let mut shares = self.open();
        give();
        shares.lent -= bytes;
    }

    /// Held while anything changes hands, so that nobody looks meanwhile.
    fn open(&self) -> MutexGuard<'_, Shares> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::Books;

    #[test]
    fn what_is_lent_is_not_the_drivers() {
        let books = Books::new(300);
        let no = books.lend(50, || Err::<(), _>("no memory"));
        assert_eq!(no, Err("no memory"));
        assert_eq!(books.kept(|| Some(334)), 334);
        assert_eq!(books.kept(|| None), 334);
        let address = books.lend(50, || Ok::<_, ()>(7)).unwrap();
        assert_eq!(address, 7);
        assert_eq!(books.kept(|| panic!("nothing can be seen now")), 334);
        books.take_back(50, || ());
        assert_eq!(books.kept(|| Some(340)), 340);
    }

    #[test]
    fn nobody_looks_while_memory_changes_hands() {
        let (books, used) = (Books::new(0), AtomicU64::new(0));
        let borrow = || {
            for bytes in 1..=2000 {
                let take = || {
                    used.fetch_add(bytes, Ordering::Relaxed);
                    Ok::<_, ()>(())
                };
                books.lend(bytes, take).unwrap();
                books.take_back(bytes, || {
                    used.fetch_sub(bytes, Ordering::Relaxed);
                });
            }
        };
        let look = || {
            for _ in 0..2000 {
                let seen = books.kept(|| Some(used.load(Ordering::Relaxed)));
                assert_eq!(seen, 0);
            }
        };
        std::thread::scope(|scope| {
            scope.spawn(borrow);
            scope.spawn(borrow);
            scope.spawn(look);
        });
    }
}
