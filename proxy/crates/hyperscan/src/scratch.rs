//! The space that a scan writes to: one for each thread, large enough for every database there is.
//!
//! A prototype grows with each database when that is compiled, so that memory which is missing is noticed there. A thread that
//! scans clones it when the one it has is older than the database.

use std::cell::RefCell;
use std::ptr::{self, NonNull};
use std::sync::{Mutex, PoisonError};

use crate::abi;
use crate::library::Library;

/// Most bytes of a thread's scratch space. A database that needs more is refused.
pub const MAX_SCRATCH: usize = 4 << 20;

/// A space that the library has allocated.
struct Space {
    library: &'static Library,
    raw: NonNull<abi::RawScratch>,
}

// SAFETY: the space is plain memory, which the library uses only during the calls that it is given to.
unsafe impl Send for Space {}

impl Drop for Space {
    fn drop(&mut self) {
        // SAFETY: the library has allocated it, and nobody else has it. It is not in use: a scan borrows it.
        unsafe { (self.library.free_scratch)(self.raw.as_ptr()) };
    }
}

impl Space {
    fn size(&self) -> Option<usize> {
        let mut size = 0;
        // SAFETY: a space of the library, which is not written to meanwhile, and a place for its size.
        let result = unsafe { (self.library.scratch_size)(self.raw.as_ptr(), &raw mut size) };
        (result == abi::HS_SUCCESS).then_some(size)
    }

    fn try_clone(&self) -> Option<Self> {
        let mut raw = ptr::null_mut();
        // SAFETY: a space of the library, which is not in use, and a place for the new one.
        let result = unsafe { (self.library.clone_scratch)(self.raw.as_ptr(), &raw mut raw) };
        let raw = NonNull::new(raw).filter(|_| result == abi::HS_SUCCESS)?;
        Some(Self {
            library: self.library,
            raw,
        })
    }
}

/// What all threads' spaces are cloned of.
struct Prototype {
    /// How often it has grown.
    generation: u64,
    space: Option<Space>,
}

static PROTOTYPE: Mutex<Prototype> = Mutex::new(Prototype {
    generation: 0,
    space: None,
});

thread_local! {
    static SPACE: RefCell<Option<(u64, Space)>> = const { RefCell::new(None) };
}

/// Why there is no space for a database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoSpace {
    Memory,
    TooLarge(usize),
}

/// Makes all spaces that are cloned from now on large enough for `database`, which is alive. The number of the first of them.
pub(crate) fn grow(library: &'static Library, database: NonNull<abi::RawDatabase>) -> Result<u64, NoSpace> {
    let mut prototype = PROTOTYPE.lock().unwrap_or_else(PoisonError::into_inner);
    // A clone grows, because the library frees what it cannot enlarge, and leaves null in its place.
    let before = match &prototype.space {
        Some(space) => Some(space.try_clone().ok_or(NoSpace::Memory)?),
        None => None,
    };
    let size_before = before.as_ref().and_then(Space::size);
    let mut raw = before.map_or(ptr::null_mut(), |space| {
        let raw = space.raw.as_ptr();
        std::mem::forget(space);
        raw
    });
    // SAFETY: the database is alive; the space is the library's and nobody else's, or null, which is allocated anew.
    let result = unsafe { (library.alloc_scratch)(database.as_ptr(), &raw mut raw) };
    let space = NonNull::new(raw).map(|raw| Space { library, raw });
    let space = space.filter(|_| result == abi::HS_SUCCESS).ok_or(NoSpace::Memory)?;
    let size = space.size().ok_or(NoSpace::Memory)?;
    if size > MAX_SCRATCH {
        return Err(NoSpace::TooLarge(size));
    }
    prototype.space = Some(space);
    // A thread's space of the same size is large enough: each of its parts has the size of the largest there was.
    if size_before != Some(size) {
        prototype.generation += 1;
    }
    Ok(prototype.generation)
}

/// Lends the thread's space, of that generation or a later one. None while it is lent already, and where memory is missing.
pub(crate) fn lend<T>(generation: u64, scan: impl FnOnce(NonNull<abi::RawScratch>) -> T) -> Option<T> {
    SPACE
        .try_with(|space| {
            let mut space = space.try_borrow_mut().ok()?;
            if space.as_ref().is_none_or(|(of, _)| *of < generation) {
                // The old one goes first, so that a thread never has two.
                *space = None;
                *space = Some(clone_of_prototype()?);
            }
            let (_, space) = space.as_ref()?;
            Some(scan(space.raw))
        })
        .ok()
        .flatten()
}

#[cold]
fn clone_of_prototype() -> Option<(u64, Space)> {
    let prototype = PROTOTYPE.lock().unwrap_or_else(PoisonError::into_inner);
    let space = prototype.space.as_ref()?.try_clone()?;
    Some((prototype.generation, space))
}
