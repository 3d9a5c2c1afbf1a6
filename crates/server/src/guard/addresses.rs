//! Limit on the connections from one address.

use std::{
    collections::HashMap,
    net::IpAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// Number of open connections by address.
pub struct AddressLimit {
    open: Mutex<HashMap<IpAddr, usize>>,
    limit: usize,
}

/// Permit of one open connection.
pub struct AddressPermit {
    limit: Arc<AddressLimit>,
    address: IpAddr,
}

impl AddressLimit {
    /// Creates a limit of connections from each address.
    pub fn new(limit: usize) -> Arc<Self> {
        Arc::new(AddressLimit {
            open: Mutex::default(),
            limit,
        })
    }

    fn open(&self) -> MutexGuard<'_, HashMap<IpAddr, usize>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a connection from an address; `None` if the address has too many. The addresses of one IPv6
    /// network count together. Loopback has no limit, because a proxy on the same machine may serve many
    /// clients.
    pub fn admit(self: &Arc<Self>, address: IpAddr) -> Option<AddressPermit> {
        let address = network(address);
        let mut open = self.open();
        let count = open.entry(address).or_insert(0);
        if *count >= self.limit && !address.is_loopback() {
            return None;
        }
        *count += 1;
        Some(AddressPermit {
            limit: Arc::clone(self),
            address,
        })
    }
}

impl Drop for AddressPermit {
    fn drop(&mut self) {
        let mut open = self.limit.open();
        if let Some(count) = open.get_mut(&self.address) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                open.remove(&self.address);
            }
        }
    }
}

/// Address that connections are counted by: one host has a whole IPv6 network of 64 bits.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) if !address.is_loopback() => {
            let prefix = u128::from(address) >> 64 << 64;
            IpAddr::V6(prefix.into())
        }
        address => address,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::AddressLimit;

    #[test]
    fn one_address_cannot_take_all_connections() {
        let limit = AddressLimit::new(2);
        let admit = |address: &str| limit.admit(address.parse().unwrap());
        let (first, _second) = (admit("10.0.0.1").unwrap(), admit("10.0.0.1").unwrap());
        assert!(admit("10.0.0.1").is_none());
        assert!(admit("10.0.0.2").is_some());
        drop(first);
        assert!(
            admit("::ffff:10.0.0.1").is_some(),
            "one address in two forms"
        );
        let _network = (admit("2001:db8::1").unwrap(), admit("2001:db8::2").unwrap());
        assert!(admit("2001:db8::3").is_none());
        let many: Vec<_> = (0..10).map(|_| admit("127.0.0.1")).collect();
        assert!(many.iter().all(Option::is_some));
        drop(many);
        assert_eq!(limit.open().get(&"127.0.0.1".parse().unwrap()), None);
    }
}
