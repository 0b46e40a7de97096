//! Longest-prefix look-up of addresses.

use std::collections::HashMap;
use std::net::IpAddr;

use ahash::RandomState;
use heddle_config::snapshot::Cidr;

/// Values by address range. One hash table per prefix length in use, longest first: a look-up costs as many probes as
/// there are different lengths, however many ranges there are.
#[derive(Debug)]
pub(super) struct Prefixes<T> {
    v4: Vec<(u8, HashMap<u128, T, RandomState>)>,
    v6: Vec<(u8, HashMap<u128, T, RandomState>)>,
    /// For chains that do not ask. Any range is more specific.
    any: Option<T>,
}

impl<T> Default for Prefixes<T> {
    fn default() -> Self {
        Self {
            v4: Vec::new(),
            v6: Vec::new(),
            any: None,
        }
    }
}

impl<T> Prefixes<T> {
    /// The value whose range is the longest that holds `address`.
    pub(super) fn find(&self, address: IpAddr) -> Option<&T> {
        let (tables, bits, width) = match address.to_canonical() {
            IpAddr::V4(v4) => (&self.v4, u128::from(v4.to_bits()), 32),
            IpAddr::V6(v6) => (&self.v6, v6.to_bits(), 128),
        };
        tables
            .iter()
            .find_map(|(prefix, table)| table.get(&masked(bits, *prefix, width)))
            .or(self.any.as_ref())
    }

    /// The value of a range, made when absent.
    pub(super) fn entry(&mut self, range: Option<Cidr>) -> &mut T
    where
        T: Default,
    {
        let Some(range) = range else {
            return self.any.get_or_insert_default();
        };
        let (tables, bits, width) = match range.address.to_canonical() {
            IpAddr::V4(v4) => (&mut self.v4, u128::from(v4.to_bits()), 32),
            IpAddr::V6(v6) => (&mut self.v6, v6.to_bits(), 128),
        };
        let at = match tables.binary_search_by(|(prefix, _)| range.prefix.cmp(prefix)) {
            Ok(at) => at,
            Err(at) => {
                tables.insert(at, (range.prefix, HashMap::default()));
                at
            }
        };
        tables[at].1.entry(masked(bits, range.prefix, width)).or_default()
    }
}

fn masked(bits: u128, prefix: u8, width: u32) -> u128 {
    let drop = width.saturating_sub(u32::from(prefix));
    bits.checked_shr(drop).and_then(|b| b.checked_shl(drop)).unwrap_or(0)
}
