//! `relay LISTEN BACKEND`, an address and port each: takes what comes on a connection, sends it to the backend on one of its own, and what
//! comes back back. It reads none of it, on one thread: two reads and two writes a request, with nothing in between, which is
//! what no proxy of HTTP/1.1 that does so can cost less than. For the benchmarks; it ends where its backend or a system call fails.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

/// A connection, and where its other one is.
struct End {
    socket: TcpStream,
    other: usize,
}

struct Relay {
    epoll: Epoll,
    /// By their file descriptors; that of the listener is none.
    ends: Vec<Option<End>>,
    buffer: Vec<u8>,
}

impl Relay {
    fn watch(&mut self, socket: TcpStream, other: usize) -> Outcome<()> {
        let at = usize::try_from(socket.as_raw_fd())?;
        socket.set_nonblocking(true)?;
        socket.set_nodelay(true)?;
        let flags = EpollFlags::EPOLLIN | EpollFlags::EPOLLRDHUP | EpollFlags::EPOLLET;
        self.epoll.add(&socket, EpollEvent::new(flags, at as u64))?;
        if self.ends.len() <= at {
            self.ends.resize_with(at + 1, || None);
        }
        self.ends[at] = Some(End { socket, other });
        Ok(())
    }

    fn take_over(&mut self, client: TcpStream, backend: &str) -> Outcome<()> {
        let server = TcpStream::connect(backend)?;
        let (at, other) = (client.as_raw_fd(), server.as_raw_fd());
        self.watch(client, usize::try_from(other)?)?;
        self.watch(server, usize::try_from(at)?)
    }

    /// What has come on an end goes to the other: it is a message each, and fits. A pair of which one is closed or fails is closed.
    fn pass(&mut self, at: usize, closed: bool) {
        let Some(Some(from)) = self.ends.get(at) else {
            return;
        };
        let other = from.other;
        let open = match (&from.socket).read(&mut self.buffer) {
            Ok(0) => false,
            Ok(count) => {
                let to = self.ends.get(other).and_then(Option::as_ref);
                to.is_some_and(|to| (&to.socket).write_all(&self.buffer[..count]).is_ok()) && !closed
            }
            Err(error) => error.kind() == ErrorKind::WouldBlock && !closed,
        };
        if !open {
            self.ends[at] = None;
            self.ends[other] = None;
        }
    }
}

fn main() -> Outcome<()> {
    let mut arguments = std::env::args().skip(1);
    let (Some(listen), Some(backend), None) = (arguments.next(), arguments.next(), arguments.next()) else {
        return Err("usage: relay LISTEN BACKEND".into());
    };
    let listener = TcpListener::bind(&listen)?;
    listener.set_nonblocking(true)?;
    let at = u64::try_from(listener.as_raw_fd())?;
    let mut relay = Relay {
        epoll: Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?,
        ends: Vec::new(),
        buffer: vec![0; 65536],
    };
    relay.epoll.add(&listener, EpollEvent::new(EpollFlags::EPOLLIN, at))?;
    let mut events = [EpollEvent::empty(); 256];
    loop {
        let ready = relay.epoll.wait(&mut events, EpollTimeout::NONE)?;
        for event in &events[..ready] {
            if event.data() != at {
                let closed = event.events().contains(EpollFlags::EPOLLRDHUP);
                relay.pass(usize::try_from(event.data())?, closed);
                continue;
            }
            match listener.accept() {
                Ok((client, _)) => relay.take_over(client, &backend)?,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}
