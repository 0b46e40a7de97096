//! Where log lines go: one writer thread, and one bounded buffer for each worker and destination.
//!
//! A worker writes its lines into its buffer and never waits for a disk: a line for which there is no room is dropped and
//! counted. The writer looks at the buffers [`FLUSH_INTERVAL`] apart instead of being woken, so a line costs no system
//! call, no allocation and no memory freed by another thread.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::rc::{Rc, Weak};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Bytes of lines that one worker may have waiting for one destination. Clients choose how long a line is, as far as the
/// head of a request may be.
const QUEUE_BYTES: usize = 8 * 1024 * 1024;

/// How long a line may wait before it is written.
pub const FLUSH_INTERVAL: Duration = Duration::from_millis(100);

/// Memory that a buffer keeps when its lines are written.
const KEPT: usize = 16 * 1024;

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

/// Lines on their way from one worker to one destination.
#[derive(Default)]
struct Buffer {
    bytes: Vec<u8>,
    lines: u64,
    /// Nobody writes them any more.
    closed: bool,
}

/// Held for as long as a line takes to be written into memory, or two buffers to be exchanged.
fn lock(buffer: &Mutex<Buffer>) -> MutexGuard<'_, Buffer> {
    buffer.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A worker's end of a destination.
pub struct LogSink {
    buffer: Arc<Mutex<Buffer>>,
    counts: Arc<Counts>,
}

/// The writer's end of it.
struct Queue(Arc<Mutex<Buffer>>);

impl Queue {
    fn new(counts: &Arc<Counts>) -> (LogSink, Self) {
        let buffer = Arc::<Mutex<Buffer>>::default();
        let sink = LogSink {
            buffer: Arc::clone(&buffer),
            counts: Arc::clone(counts),
        };
        (sink, Self(buffer))
    }

    /// Exchanges what has come for an empty buffer; false when no more will come.
    fn take(&self, batch: &mut Vec<u8>, lines: &mut u64) -> bool {
        // Asked first: what was sent before the sink was dropped is there by then.
        let open = Arc::strong_count(&self.0) > 1;
        let mut buffer = lock(&self.0);
        std::mem::swap(&mut buffer.bytes, batch);
        *lines = std::mem::take(&mut buffer.lines);
        open
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        *lock(&self.0) = Buffer {
            closed: true,
            ..Buffer::default()
        };
    }
}

impl LogSink {
    /// Hands over one complete line, which `write` appends. Never waits for a disk; false when too much waits already
    /// and the line was dropped.
    pub fn send(&self, write: impl FnOnce(&mut Vec<u8>)) -> bool {
        let mut buffer = lock(&self.buffer);
        let before = buffer.bytes.len();
        if !buffer.closed && before < QUEUE_BYTES {
            write(&mut buffer.bytes);
            if buffer.bytes.len() <= QUEUE_BYTES {
                buffer.lines += 1;
                return true;
            }
            buffer.bytes.truncate(before);
        }
        self.counts.dropped.fetch_add(1, Ordering::Relaxed);
        false
    }
}

/// The destinations that a worker has open: one buffer for each, however many listeners and filter chains write there.
/// Cloning shares them.
#[derive(Clone)]
pub struct WorkerLogs {
    files: LogFiles,
    sinks: Rc<RefCell<HashMap<Destination, Weak<LogSink>>>>,
}

impl WorkerLogs {
    /// The way to `destination`, which is opened at its first use. May take a lock and open a file: call it when a
    /// listener is set up, never per request.
    ///
    /// # Errors
    /// The file cannot be opened.
    pub fn sink(&self, destination: &Destination) -> Result<Rc<LogSink>, OpenError> {
        let mut sinks = self.sinks.borrow_mut();
        if let Some(sink) = sinks.get(destination).and_then(Weak::upgrade) {
            return Ok(sink);
        }
        let sink = Rc::new(self.files.sink(destination)?);
        sinks.retain(|_, sink| sink.strong_count() > 0);
        sinks.insert(destination.clone(), Rc::downgrade(&sink));
        Ok(sink)
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

    /// The destinations of one more worker.
    pub fn worker(&self) -> WorkerLogs {
        WorkerLogs {
            files: self.clone(),
            sinks: Rc::default(),
        }
    }

    fn sink(&self, destination: &Destination) -> Result<LogSink, OpenError> {
        let shared = &self.0.shared;
        let (sink, queue) = Queue::new(&shared.counts);
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
            // Closes the buffers.
            state.targets.clear();
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
            let mut lines = 0;
            let open = queue.take(&mut self.batch, &mut lines);
            self.flush(counts);
            counts.written.fetch_add(lines, Ordering::Relaxed);
            open
        });
        self.queues = queues;
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
        // A burst's memory is not kept.
        self.batch.shrink_to(KEPT);
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

    fn line(text: &str) -> impl FnOnce(&mut Vec<u8>) {
        |out| out.extend_from_slice(text.as_bytes())
    }

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
            assert!(one.send(line(&format!("one {i}\n"))));
            assert!(two.send(line(&format!("two {i}\n"))));
        }
        files.stop();
        let text = std::fs::read_to_string(dir.join("a.log")).expect("log");
        assert_eq!(text.lines().count(), 200);
        assert_eq!(files.counts(), (0, 200, 0));
        assert!(!one.send(line("late\n")), "nobody writes it");
        assert_eq!(files.counts(), (1, 200, 0));
        std::fs::remove_dir_all(dir).expect("clean");
    }

    #[test]
    fn a_workers_chains_share_a_buffer() {
        let dir = scratch("share");
        let worker = LogFiles::start().expect("thread").worker();
        let to = Destination::File(dir.join("a.log"));
        let one = worker.sink(&to).expect("sink");
        assert!(Rc::ptr_eq(&one, &worker.clone().sink(&to).expect("sink")));
        drop(one);
        assert!(worker.sinks.borrow().values().all(|sink| sink.strong_count() == 0));
        worker.sink(&Destination::Stdout).expect("sink");
        assert_eq!(worker.sinks.borrow().len(), 1, "what nobody uses is forgotten");
        std::fs::remove_dir_all(dir).expect("clean");
    }

    #[test]
    fn a_full_buffer_drops_and_counts() {
        let (sink, queue) = Queue::new(&Arc::default());
        let long = "x".repeat(64 * 1024);
        let sent = (0..1000).filter(|_| sink.send(line(&long))).count();
        assert_eq!(sent, QUEUE_BYTES / long.len());
        assert_eq!(sink.counts.dropped.load(Ordering::Relaxed), 1000 - sent as u64);
        let (mut batch, mut lines) = (Vec::new(), 0);
        assert!(queue.take(&mut batch, &mut lines));
        assert_eq!((batch.len(), lines), (QUEUE_BYTES, sent as u64));
        assert!(sink.send(line(&long)), "there is room again");
        assert!(!sink.send(|out| out.resize(out.len() + QUEUE_BYTES, b'x')));
        assert!(sink.send(line(&long)), "of what was too long nothing is left");
        batch.clear();
        drop(sink);
        assert!(!queue.take(&mut batch, &mut lines), "no more comes");
        assert_eq!((batch.len(), lines), (2 * long.len(), 2));
    }

    #[test]
    fn reopen_follows_a_rotation() {
        let dir = scratch("rotate");
        let path = dir.join("a.log");
        let counts = Counts::default();
        let (sink, queue) = Queue::new(&Arc::default());
        let to = Destination::File(path.clone());
        let mut target = Target {
            file: Some(open(&path).expect("open")),
            destination: to,
            queues: vec![queue],
            batch: Vec::new(),
        };
        assert!(sink.send(line("old\n")));
        target.drain(&counts);
        std::fs::rename(&path, dir.join("a.log.1")).expect("rotate");
        target.reopen(&counts);
        assert!(sink.send(line("new\n")));
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
