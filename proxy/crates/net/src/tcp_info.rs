//! What the kernel knows about a connection (`TCP_INFO`, tcp(7)).
#![allow(unsafe_code)]

use std::io;
use std::os::fd::AsRawFd;
use std::time::Duration;

use tokio::net::TcpStream;

/// The part of `struct tcp_info` that tells whether the peer still answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TcpInfo {
    /// Whether the peer owes an acknowledgement: of data, or of a probe of its closed window.
    pub(crate) outstanding: bool,
    /// Time since the peer's last acknowledgement.
    pub(crate) silence: Duration,
}

impl TcpInfo {
    /// Asks the kernel.
    pub(crate) fn of(tcp: &TcpStream) -> io::Result<Self> {
        // SAFETY: `tcp_info` is made of integers only, for which all bits zero is a value.
        let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
        let mut length = libc::socklen_t::try_from(size_of::<libc::tcp_info>()).unwrap_or(0);
        // SAFETY: the descriptor is open as long as `tcp` is borrowed. The kernel writes at most `length` bytes to
        // `info`, which has that size and outlives the call; what an older kernel does not write stays zero.
        let result = unsafe {
            libc::getsockopt(
                tcp.as_raw_fd(),
                libc::IPPROTO_TCP,
                libc::TCP_INFO,
                (&raw mut info).cast(),
                &raw mut length,
            )
        };
        if result != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Self {
            outstanding: info.tcpi_unacked > 0 || info.tcpi_probes > 0,
            silence: Duration::from_millis(u64::from(info.tcpi_last_ack_recv)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_idle_connection_owes_nothing() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("binds");
        let client = TcpStream::connect(listener.local_addr().expect("address"))
            .await
            .expect("connects");
        let info = TcpInfo::of(&client).expect("the kernel tells");
        assert!(!info.outstanding);
        assert!(info.silence < Duration::from_secs(60), "{info:?}");
    }
}
