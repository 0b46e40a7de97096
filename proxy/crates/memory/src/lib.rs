//! The memory of the process: its allocator, what threads keep of it, and what is given back to the system.

mod append;
mod place;
mod program;
mod spares;

pub use mimalloc::MiMalloc;

pub use append::append;
pub use place::{Placed, placed, trim_places};
pub use program::give_back_program;
pub use spares::Spares;

// Of the library that `mimalloc` links (its `mimalloc.h`).
unsafe extern "C" {
    fn mi_collect(force: bool);
}

/// Gives memory that the calling thread, or a thread that has ended, has freed back to the system. The allocator does that by
/// itself a second after a page was freed, but only where a thread goes on allocating; what is freed by one that then sleeps
/// stays resident. Costs up to a millisecond, and more where much is held: to be called once by a thread that has had nothing to do for
/// some seconds, not by one that serves.
pub fn give_back() {
    // SAFETY: the function has no conditions; it locks what it shares with other threads.
    unsafe { mi_collect(true) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[global_allocator]
    static ALLOCATOR: MiMalloc = MiMalloc;

    /// Of this process, in KiB.
    fn resident() -> u64 {
        let status = std::fs::read_to_string("/proc/self/status").expect("/proc");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let number = line.and_then(|line| line.split_whitespace().next()).expect("VmRSS");
        number.parse().expect("a number")
    }

    #[test]
    fn what_was_freed_is_given_back() {
        const KIB: usize = 32 * 1024;
        let pieces: Vec<_> = (0..KIB).map(|_| vec![1_u8; 1024]).collect();
        let held = resident();
        drop(pieces);
        give_back();
        let left = resident();
        assert!(left + KIB as u64 * 3 / 4 < held, "{left} KiB of {held}");
    }
}
