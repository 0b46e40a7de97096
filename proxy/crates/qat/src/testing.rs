//! A library with QATlib's interface and no device, for tests of this and other crates.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt as _;
use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::{env, fs, process};

use crate::device::{Device, Unavailable};
use crate::library::{Library, Loaded};

/// How a request is answered: the enumeration in `fake_qat.c`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answered {
    /// With the right result.
    Rightly,
    /// With a fault in one half of the Chinese remainder theorem, which would give a prime away.
    Wrongly,
    /// With this `CpaStatus` instead of a result.
    WithStatus(i32),
    /// Not taken: `cpaCyRsaDecrypt` returns this `CpaStatus`.
    Refused(i32),
    /// Taken, and never answered.
    Never,
    /// Rightly, twice.
    Twice,
}

/// What an instance has been asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counts {
    /// Requests that it has not answered.
    pub waiting: u32,
    /// Most of them at once.
    pub most_waiting: u32,
    /// All that it took.
    pub taken: u32,
}

/// A copy of the library of its own, and the test's hand on it. It has four instances, the last of which does no RSA.
pub struct Fake {
    library: Library,
    setup: unsafe extern "C" fn(i32, u16),
    script: unsafe extern "C" fn(u16, u32, u32, i32) -> i32,
    counts: unsafe extern "C" fn(u16, *mut u32),
    #[cfg(test)]
    layout: unsafe extern "C" fn(*mut u32),
    wiped: unsafe extern "C" fn() -> i32,
}

/// Instances of a [`Fake`] that do RSA.
pub const INSTANCES: usize = 3;

impl Fake {
    /// Loads a copy, which the system's C compiler has made.
    pub fn new() -> Self {
        static COPIES: AtomicUsize = AtomicUsize::new(0);
        let serial = COPIES.fetch_add(1, Ordering::Relaxed);
        // A file of its own, as the loader gives the same file out only once.
        let path = env::temp_dir().join(format!("heddle-fake-qat-{}-{serial}.so", process::id()));
        fs::write(&path, compiled()).expect("writes a copy");
        let name = CString::new(path.as_os_str().as_bytes()).expect("a path");
        let loaded = Loaded::new(&name).expect("it loads");
        fs::remove_file(&path).expect("removes the copy");
        // SAFETY: the types are those of the functions in fake_qat.c.
        unsafe {
            Self {
                library: Library::new(loaded).expect("all functions"),
                setup: loaded.function(c"fake_qat_setup").expect("exported"),
                script: loaded.function(c"fake_qat_script").expect("exported"),
                counts: loaded.function(c"fake_qat_counts").expect("exported"),
                #[cfg(test)]
                layout: loaded.function(c"fake_qat_layout").expect("exported"),
                wiped: loaded.function(c"fake_qat_memory_is_wiped").expect("exported"),
            }
        }
    }

    /// Starts it, as a process does once.
    ///
    /// # Errors
    /// What [`Fake::setup`] has asked for.
    pub fn start(&self) -> Result<&'static Device, Unavailable> {
        Device::start(self.library).map(|device| &*Box::leak(Box::new(device)))
    }

    /// What starting returns, and how many instances there are then.
    pub fn setup(&self, status: i32, instances: u16) {
        assert!(usize::from(instances) <= INSTANCES + 1);
        // SAFETY: numbers only.
        unsafe { (self.setup)(status, instances) }
    }

    /// How one more request of an instance is answered, after how many polls. Those without are answered rightly at the
    /// first; those with the same number of polls, the newest first.
    pub fn next(&self, instance: usize, answered: Answered, polls: u32) {
        let (kind, status) = match answered {
            Answered::Rightly => (0, 0),
            Answered::Wrongly => (1, 0),
            Answered::WithStatus(status) => (2, status),
            Answered::Refused(status) => (3, status),
            Answered::Never => (4, 0),
            Answered::Twice => (5, 0),
        };
        assert!(instance < INSTANCES);
        // SAFETY: numbers only, of an instance that there is.
        let said = unsafe { (self.script)(instance as u16, kind, polls, status) };
        assert_eq!(said, 0, "the script is full");
    }

    /// What an instance has been asked for. No request of any instance may have been malformed.
    pub fn counts(&self, instance: usize) -> Counts {
        assert!(instance < INSTANCES);
        let mut out = [0; 4];
        // SAFETY: there is room for four numbers.
        unsafe { (self.counts)(instance as u16, out.as_mut_ptr()) };
        let [waiting, most_waiting, taken, malformed] = out;
        assert_eq!(malformed, 0, "malformed requests");
        Counts {
            waiting,
            most_waiting,
            taken,
        }
    }

    /// Whether nothing is left in the memory that the library has given out.
    pub fn memory_is_wiped(&self) -> bool {
        // SAFETY: it only reads; the caller has no request under way.
        unsafe { (self.wiped)() != 0 }
    }

    /// Sizes and offsets of the structures, as a C compiler has them.
    #[cfg(test)]
    pub(crate) fn layout(&self) -> [u32; 10] {
        let mut out = [0; 10];
        // SAFETY: there is room for ten numbers.
        unsafe { (self.layout)(out.as_mut_ptr()) };
        out
    }
}

impl Default for Fake {
    fn default() -> Self {
        Self::new()
    }
}

/// The library, compiled once in each process.
fn compiled() -> &'static [u8] {
    static COMPILED: OnceLock<Vec<u8>> = OnceLock::new();
    COMPILED.get_or_init(|| {
        let at = |suffix| env::temp_dir().join(format!("heddle-fake-qat-{}.{suffix}", process::id()));
        let (source, library) = (at("c"), at("so"));
        fs::write(&source, include_str!("fake_qat.c")).expect("writes the source");
        let done = Command::new("cc")
            .args(["-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o"])
            .args([&library, &source])
            .output()
            .expect("a C compiler, which BoringSSL needs too");
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        let bytes = fs::read(&library).expect("compiled");
        for file in [source, library] {
            fs::remove_file(file).expect("removes what it has written");
        }
        bytes
    })
}
