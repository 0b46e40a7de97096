//! Addresses as text, printed without the machinery of `fmt`: headers and access logs hold several per request.

use std::fmt::Write as _;
use std::net::{IpAddr, SocketAddr};

/// Longest text: `[`, an IPv6 address of 45 characters, `%` and a scope of 10 digits, `]:` and a port of 5 digits.
const MAX: usize = 64;

/// The text of each octet of an IPv4 address with a dot behind it, and how long it is with that.
const OCTETS: [([u8; 4], u8); 256] = {
    let mut all = [([b'.'; 4], 0); 256];
    let mut octet = 0;
    while octet < all.len() {
        let digits = [octet / 100, octet / 10 % 10, octet % 10];
        let skipped = if octet < 10 {
            2
        } else if octet < 100 {
            1
        } else {
            0
        };
        let mut at = skipped;
        while at < digits.len() {
            all[octet].0[at - skipped] = b'0' + digits[at] as u8;
            at += 1;
        }
        all[octet].1 = (digits.len() - skipped + 1) as u8;
        octet += 1;
    }
    all
};

/// An address as its `Display` prints it.
#[derive(Clone, Copy, Debug)]
pub struct AddressText {
    bytes: [u8; MAX],
    len: usize,
}

impl AddressText {
    /// An address without a port.
    pub fn of_ip(ip: IpAddr) -> Self {
        let mut text = Self {
            bytes: [0; MAX],
            len: 0,
        };
        match ip {
            IpAddr::V4(ip) => {
                for octet in ip.octets() {
                    let (digits, length) = &OCTETS[usize::from(octet)];
                    if let Some(place) = text.bytes.get_mut(text.len..).and_then(|rest| rest.first_chunk_mut()) {
                        *place = *digits;
                        text.len += usize::from(*length);
                    }
                }
                // There is no dot behind the last.
                text.len -= 1;
            }
            // Fits.
            IpAddr::V6(ip) => _ = write!(text, "{ip}"),
        }
        text
    }

    /// An address with its port.
    pub fn of(address: SocketAddr) -> Self {
        match address {
            SocketAddr::V4(v4) => {
                let mut text = Self::of_ip(IpAddr::V4(*v4.ip()));
                // Fits.
                _ = text.write_str(":");
                _ = text.write_str(itoa::Buffer::new().format(v4.port()));
                text
            }
            SocketAddr::V6(v6) => {
                let mut text = Self {
                    bytes: [0; MAX],
                    len: 0,
                };
                _ = write!(text, "{v6}"); // Fits.
                text
            }
        }
    }

    /// Appends the text of an address with its port to `out`.
    pub fn append(address: SocketAddr, out: &mut Vec<u8>) {
        let SocketAddr::V4(address) = address else {
            out.extend_from_slice(Self::of(address).as_bytes());
            return;
        };
        let mut text = [0; 4 * 4];
        let mut length = 0;
        for octet in address.ip().octets() {
            let (digits, more) = &OCTETS[usize::from(octet)];
            if let Some(place) = text.get_mut(length..).and_then(|rest| rest.first_chunk_mut()) {
                *place = *digits;
                length += usize::from(*more);
            }
        }
        // In place of the last dot.
        text[length - 1] = b':';
        let mut number = itoa::Buffer::new();
        let port = number.format(address.port()).as_bytes();
        out.extend_from_slice(text.get(..length).unwrap_or_default());
        out.extend_from_slice(port);
    }

    /// The text, ASCII.
    pub fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or_default()
    }
}

impl std::fmt::Write for AddressText {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        let end = self.len + text.len();
        let place = self.bytes.get_mut(self.len..end).ok_or(std::fmt::Error)?;
        place.copy_from_slice(text.as_bytes());
        self.len = end;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddrV6;

    use super::*;

    #[test]
    fn prints_what_display_prints() {
        let longest = SocketAddrV6::new(
            "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff".parse().expect("ip"),
            65535,
            0,
            u32::MAX,
        );
        let mut addresses = vec![SocketAddr::V6(longest)];
        for text in [
            "0.0.0.0:0",
            "1.20.255.99:1",
            "100.101.200.9:10",
            "255.255.255.255:65535",
            "10.0.0.1:999",
            "10.0.0.1:10000",
            "[::1]:80",
            "[::ffff:1.2.3.4]:8080",
            "[2001:db8::1]:443",
        ] {
            addresses.push(text.parse().expect(text));
        }
        let appended = |address| {
            let mut out = b"at ".to_vec();
            AddressText::append(address, &mut out);
            out
        };
        for address in addresses {
            assert_eq!(AddressText::of(address).as_bytes(), address.to_string().as_bytes());
            assert_eq!(appended(address), format!("at {address}").as_bytes());
            assert_eq!(
                AddressText::of_ip(address.ip()).as_bytes(),
                address.ip().to_string().as_bytes()
            );
        }
        for number in 0..=u16::MAX {
            let [high, low] = number.to_be_bytes();
            let address = SocketAddr::new(IpAddr::from([low, high, 0, low]), number);
            assert_eq!(AddressText::of(address).as_bytes(), address.to_string().as_bytes());
            assert_eq!(appended(address), format!("at {address}").as_bytes());
        }
    }
}
