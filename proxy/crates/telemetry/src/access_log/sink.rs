//! Where log lines go: one writer thread, and a bounded queue from every worker to every destination.
//!
//! A worker never waits for a disk: a line that finds its queue full is dropped and counted. The writer looks at the
//! queues [`FLUSH_INTERVAL`] apart instead of being woken, so sending a line costs no system call.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

/// Lines that one worker may have waiting for one destination.
const QUEUE_LINES: usize = 16 * 1024;

/// Bytes that these lines may have together. Clients choose how long a line is, as far as the head of a request may be:
/// by their number alone, lines could fill a gigabyte while a disk is slow.
const QUEUE_BYTES: usize = 8 * 1024 * 1024;

/// How long a line may wait before it is written.
pub const FLUSH_INTERVAL: Duration = Duration::from_millis(100);

/// Bytes gathered before a write.
const BATCH: usize = 64 * 1024;

/// Where a log goes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Destination {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
    /// A file, appended to, made when absent.
    File(PathBuf),
}

/// A log file could not be opened.
#[derive(Debug, thiserror::Error)]
#[error("access log {}: {source}; check that its folder exists and can be written", path.display())]
pub struct OpenError {
    path: PathBuf,
    source: io::Error,
}

#[derive(Default)]
struct Counts {
    dropped: AtomicU64,
    written: AtomicU64,
    failed: AtomicU64,
}

/// A worker's end of a destination. Not shared between threads: every worker asks for its own.
pub struct LogSink {
    queue: SyncSender<Vec<u8>>,
    /// Bytes in the queue.
    waiting: Arc<AtomicUsize>,
    counts: Arc<Counts>,
}

/// The writer's end of it.
struct Queue {
    lines: Receiver<Vec<u8>>,
    waiting: Arc<AtomicUsize>,
}

impl Queue {
    fn new(max_lines: usize, counts: &Arc<Counts>) -> (LogSink, Self) {
        let (sender, lines) = sync_channel(max_lines);
        let waiting = Arc::<AtomicUsize>::default();
        let sink = LogSink {
            queue: sender,
            waiting: Arc::clone(&waiting),
            counts: Arc::clone(counts),
        };
        (sink, Self { lines, waiting })
    }

    fn take(&self) -> Result<Vec<u8>, TryRecvError> {
        let line = self.lines.try_recv()?;
        self.waiting.fetch_sub(line.len(), Ordering::Relaxed);
        Ok(line)
    }
}

impl LogSink {
    /// Hands over one complete line. Never blocks; false when the queue was full and the line was dropped.
    pub fn send(&self, line: Vec<u8>) -> bool {
        let length = line.len();
        // Counted before it is sent, so that the writer cannot take off what was not put on.
        let fits = self.waiting.fetch_add(length, Ordering::Relaxed).saturating_add(length) <= QUEUE_BYTES;
        let sent = fits && self.queue.try_send(line).is_ok();
        if !sent {
            self.waiting.fetch_sub(length, Ordering::Relaxed);
            self.counts.dropped.fetch_add(1, Ordering::Relaxed);
        }
        sent
    }
}

struct Target {
    destination: Destination,
    file: Option<File>,
    queues: Vec<Queue>,
    batch: Vec<u8>,
}

#[derive(Default)]
struct State {
    targets: HashMap<Destination, Target>,
    stop: bool,
}

struct Shared {
    state: Mutex<State>,
    wake: Condvar,
    reopen: AtomicBool,
    counts: Arc<Counts>,
}

/// All access log destinations of the process, with the thread that writes to them. Cloning shares them.
#[derive(Clone)]
pub struct LogFiles(Arc<Handle>);

struct Handle {
    shared: Arc<Shared>,
    thread: Mutex<Option<std::thread::JoinHandle<()>>>,
}

impl LogFiles {
    /// Starts the writer thread.
    pub fn start() -> io::Result<Self> {
        let shared = Arc::new(Shared {
            state: Mutex::default(),
            wake: Condvar::new(),
            reopen: AtomicBool::new(false),
            counts: Arc::default(),
        });
        let writer = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("access-log".to_owned())
            .spawn(move || run(&writer))?;
        Ok(Self(Arc::new(Handle {
            shared,
            thread: Mutex::new(Some(thread)),
        })))
    }

    /// A new queue to `destination`, which is opened at its first use. Takes a lock: call it when a listener is set up,
    /// never per request.
    pub fn sink(&self, destination: &Destination) -> Result<LogSink, OpenError> {
        let shared = &self.0.shared;
        let (sink, queue) = Queue::new(QUEUE_LINES, &shared.counts);
        let mut state = shared.state.lock().unwrap_or_else(PoisonError::into_inner);
        match state.targets.get_mut(destination) {
            Some(target) => target.queues.push(queue),
            None => {
                let file = match destination {
                    Destination::File(path) => Some(open(path)?),
                    Destination::Stdout | Destination::Stderr => None,
                };
                let target = Target {
                    destination: destination.clone(),
                    file,
                    queues: vec![queue],
                    batch: Vec::new(),
                };
                state.targets.insert(destination.clone(), target);
            }
        }
        Ok(sink)
    }

    /// Closes and opens every file again, after a rotation (SIGHUP, `/reopen_logs`). Returns at once.
    pub fn reopen(&self) {
        self.0.shared.reopen.store(true, Ordering::Relaxed);
    }

    /// Lines dropped because a queue was full, lines written, and failed writes.
    pub fn counts(&self) -> (u64, u64, u64) {
        let counts = &self.0.shared.counts;
        (
            counts.dropped.load(Ordering::Relaxed),
            counts.written.load(Ordering::Relaxed),
            counts.failed.load(Ordering::Relaxed),
        )
    }

    /// Writes what is waiting and ends the thread. Lines sent later are dropped.
    pub fn stop(&self) {
        self.0.stop();
    }
}

impl Handle {
    fn stop(&self) {
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner).stop = true;
        self.shared.wake.notify_all();
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            // A panic there has been printed already; there is nothing left to write.
            let _ = thread.join();
        }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.stop();
    }
}

fn open(path: &Path) -> Result<File, OpenError> {
    OpenOptions::new()
        .create(true)
        .append(true)
        .open(path)
        .map_err(|source| OpenError {
            path: path.to_owned(),
            source,
        })
}

fn run(shared: &Shared) {
    let mut state = shared.state.lock().unwrap_or_else(PoisonError::into_inner);
    loop {
        let stop = state.stop;
        let reopen = shared.reopen.swap(false, Ordering::Relaxed);
        // The targets leave the lock while they are written, so that `sink` never waits for a disk.
        let mut targets = std::mem::take(&mut state.targets);
        drop(state);
        for target in targets.values_mut() {
            // What was sent before a reopen belongs into the old file.
            target.drain(&shared.counts);
            if reopen {
                target.reopen(&shared.counts);
            }
        }
        targets.retain(|_, target| !target.queues.is_empty());
        state = shared.state.lock().unwrap_or_else(PoisonError::into_inner);
        for (destination, target) in targets {
            match state.targets.get_mut(&destination) {
                // Asked for while it was being written: the queues join, the file opened first stays.
                Some(newer) => newer.queues.extend(target.queues),
                None => {
                    state.targets.insert(destination, target);
                }
            }
        }
        if stop {
            return;
        }
        state = shared
            .wake
            .wait_timeout(state, FLUSH_INTERVAL)
            .unwrap_or_else(PoisonError::into_inner)
            .0;
    }
}

impl Target {
    fn drain(&mut self, counts: &Counts) {
        let mut queues = std::mem::take(&mut self.queues);
        queues.retain(|queue| {
            // At most one queue's worth, so that one busy worker cannot keep the others waiting for ever.
            for _ in 0..QUEUE_LINES {
                match queue.take() {
                    Ok(line) => {
                        self.batch.extend_from_slice(&line);
                        counts.written.fetch_add(1, Ordering::Relaxed);
                        if self.batch.len() >= BATCH {
                            self.flush(counts);
                        }
                    }
                    Err(TryRecvError::Empty) => return true,
                    Err(TryRecvError::Disconnected) => return false,
                }
            }
            true
        });
        self.queues = queues;
        self.flush(counts);
    }

    fn flush(&mut self, counts: &Counts) {
        if self.batch.is_empty() {
            return;
        }
        let result = match (&self.destination, &mut self.file) {
            (Destination::Stdout, _) => {
                let mut out = io::stdout().lock();
                out.write_all(&self.batch).and_then(|()| out.flush())
            }
            (Destination::Stderr, _) => io::stderr().lock().write_all(&self.batch),
            (Destination::File(_), Some(file)) => file.write_all(&self.batch),
            (Destination::File(path), none) => open(path).map_err(|error| error.source).and_then(|mut file| {
                file.write_all(&self.batch)?;
                *none = Some(file);
                Ok(())
            }),
        };
        if result.is_err() {
            counts.failed.fetch_add(1, Ordering::Relaxed);
        }
        self.batch.clear();
    }

    fn reopen(&mut self, counts: &Counts) {
        if let Destination::File(path) = &self.destination {
            // None on failure: the next write tries again.
            self.file = open(path).ok();
            if self.file.is_none() {
                counts.failed.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scratch(name: &str) -> PathBuf {
        let dir = std::env::temp_dir().join(format!("heddle-log-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("scratch folder");
        dir
    }

    #[test]
    fn lines_of_all_workers_arrive_and_stop_flushes() {
        let dir = scratch("arrive");
        let to = Destination::File(dir.join("a.log"));
        let files = LogFiles::start().expect("thread");
        let (one, two) = (files.sink(&to).expect("sink"), files.sink(&to).expect("sink"));
        for i in 0..100 {
            assert!(one.send(format!("one {i}\n").into_bytes()));
            assert!(two.send(format!("two {i}\n").into_bytes()));
        }
        files.stop();
        let text = std::fs::read_to_string(dir.join("a.log")).expect("log");
        assert_eq!(text.lines().count(), 200);
        assert_eq!(files.counts(), (0, 200, 0));
        std::fs::remove_dir_all(dir).expect("clean");
    }

    #[test]
    fn a_full_queue_drops_and_counts() {
        let (sink, queue) = Queue::new(2, &Arc::default());
        assert!(sink.send(b"1\n".to_vec()) && sink.send(b"2\n".to_vec()));
        assert!(!sink.send(b"3\n".to_vec()));
        assert_eq!(sink.counts.dropped.load(Ordering::Relaxed), 1);
        drop(queue);
        assert!(!sink.send(b"4\n".to_vec()));
    }

    #[test]
    fn long_lines_fill_a_queue_by_their_bytes() {
        let (sink, queue) = Queue::new(QUEUE_LINES, &Arc::default());
        let line = vec![b'x'; 64 * 1024];
        let sent = (0..1000).filter(|_| sink.send(line.clone())).count();
        assert_eq!(sent, QUEUE_BYTES / line.len());
        assert_eq!(sink.counts.dropped.load(Ordering::Relaxed), 1000 - sent as u64);
        assert_eq!(queue.take().expect("a line").len(), line.len());
        assert!(sink.send(line.clone()), "there is room for one again");
        assert!(!sink.send(line));
    }

    #[test]
    fn reopen_follows_a_rotation() {
        let dir = scratch("rotate");
        let path = dir.join("a.log");
        let counts = Counts::default();
        let (sink, queue) = Queue::new(8, &Arc::default());
        let to = Destination::File(path.clone());
        let mut target = Target {
            file: Some(open(&path).expect("open")),
            destination: to,
            queues: vec![queue],
            batch: Vec::new(),
        };
        assert!(sink.send(b"old\n".to_vec()));
        target.drain(&counts);
        std::fs::rename(&path, dir.join("a.log.1")).expect("rotate");
        target.reopen(&counts);
        assert!(sink.send(b"new\n".to_vec()));
        target.drain(&counts);
        assert_eq!(std::fs::read_to_string(dir.join("a.log.1")).expect("old"), "old\n");
        assert_eq!(std::fs::read_to_string(&path).expect("new"), "new\n");
        drop(sink);
        target.drain(&counts);
        assert!(target.queues.is_empty());
        std::fs::remove_dir_all(dir).expect("clean");
    }

    #[test]
    fn a_folder_that_is_not_there_is_an_error() {
        let files = LogFiles::start().expect("thread");
        let error = files
            .sink(&Destination::File("/nonexistent/x/a.log".into()))
            .err()
            .expect("no folder");
        assert!(error.to_string().contains("/nonexistent/x/a.log"), "{error}");
    }
}
