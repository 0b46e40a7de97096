//! Places in memory that a thread uses again, for values of the same size.

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::cell::RefCell;
use std::ops::{Deref, DerefMut};
use std::pin::Pin;
use std::ptr::NonNull;

use crate::Spares;

/// Most places of one layout that a thread keeps.
const KEEP: usize = 256;

/// Most layouts of which a thread keeps places.
const LAYOUTS: usize = 8;

thread_local! {
    static KEPT: RefCell<Vec<Kept>> = const { RefCell::new(Vec::new()) };
}

/// What a thread keeps of one layout.
struct Kept {
    layout: Layout,
    places: Spares<Place>,
}

/// Memory of this layout, with nothing in it.
struct Place {
    at: NonNull<u8>,
    layout: Layout,
}

impl Place {
    /// One that the thread has kept, or a new one.
    #[inline]
    fn take(layout: Layout) -> Self {
        let kept = KEPT.try_with(|kept| {
            let mut kept = kept.borrow_mut();
            let of_layout = kept.iter_mut().find(|kept| kept.layout == layout)?;
            of_layout.places.take()
        });
        kept.ok().flatten().unwrap_or_else(|| Self::new(layout))
    }

    fn new(layout: Layout) -> Self {
        // SAFETY: `placed` makes sure that the layout has bytes.
        let at = unsafe { alloc(layout) };
        let at = NonNull::new(at).unwrap_or_else(|| handle_alloc_error(layout));
        #[cfg(test)]
        tests::LIVE.set(tests::LIVE.get() + 1);
        Self { at, layout }
    }

    /// Leaves it to the thread, as far as it keeps any.
    #[inline]
    fn keep(self) {
        let layout = self.layout;
        // Neither at the thread's end.
        let _ = KEPT.try_with(|kept| {
            let mut kept = kept.borrow_mut();
            if let Some(of_layout) = kept.iter_mut().find(|kept| kept.layout == layout) {
                of_layout.places.keep(self);
            } else if kept.len() < LAYOUTS {
                let mut places = Spares::new(KEEP);
                places.keep(self);
                kept.push(Kept { layout, places });
            }
        });
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        #[cfg(test)]
        let _ = tests::LIVE.try_with(|live| live.set(live.get() - 1));
        // SAFETY: `new` allocated it with this layout, and it has this one owner.
        unsafe { dealloc(self.at.as_ptr(), self.layout) };
    }
}

/// A value in a [`Place`]. As a `Box`, but its memory is kept by the thread when the value is dropped.
#[derive(Debug)]
pub struct Placed<T> {
    /// Owned. A pointer keeps it on its thread.
    at: NonNull<T>,
}

/// A value, mostly a future, in memory that this thread keeps for those of its layout: for values of kilobytes that come and
/// go with every request, for which an allocator takes its slow way. It is made where it stays: made on the stack, all its bytes
/// would be copied, of which most have no value yet.
///
/// A thread keeps at most 256 places of each of at most 8 layouts (size and alignment); [`trim_places`] frees those that are not
/// needed. A type without bytes does not compile.
#[inline]
pub fn placed<T>(make: impl FnOnce() -> T) -> Pin<Placed<T>> {
    const { assert!(size_of::<T>() > 0, "a value without bytes needs no place") };
    // The place first: what is made after it can be written there.
    let place = Place::take(Layout::new::<T>());
    let at = place.at.cast::<T>();
    // SAFETY: the place has the size and alignment of a `T`, and nobody else has it.
    unsafe { at.write(make()) };
    std::mem::forget(place);
    // SAFETY: `Placed` gives the value to nobody and never moves it: it is dropped where it is.
    unsafe { Pin::new_unchecked(Placed { at }) }
}

impl<T> Deref for Placed<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: the value is there until `self` is dropped, and is borrowed as `self` is.
        unsafe { self.at.as_ref() }
    }
}

impl<T> DerefMut for Placed<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as in `deref`.
        unsafe { self.at.as_mut() }
    }
}

impl<T> Drop for Placed<T> {
    #[inline]
    fn drop(&mut self) {
        // Freed where the value's own drop panics.
        let place = Place {
            at: self.at.cast(),
            layout: Layout::new::<T>(),
        };
        // SAFETY: the value is there, and nobody has it after this.
        unsafe { self.at.drop_in_place() };
        place.keep();
    }
}

/// Frees the places that this thread has not needed since the last call. To be called every few seconds. Returns whether it has
/// needed any.
pub fn trim_places() -> bool {
    KEPT.with_borrow_mut(|kept| {
        let mut used = false;
        kept.retain_mut(|kept| {
            used |= kept.places.trim();
            !kept.places.is_empty()
        });
        used
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::rc::Rc;
    use std::task::{Context, Poll, Waker};
    use std::thread;

    thread_local! {
        /// Places that there are.
        pub(super) static LIVE: Cell<usize> = const { Cell::new(0) };
    }

    fn address<T>(value: &Pin<Placed<T>>) -> usize {
        std::ptr::from_ref::<T>(value).addr()
    }

    fn kept() -> usize {
        KEPT.with_borrow(|kept| kept.iter().map(|kept| kept.places.len()).sum())
    }

    /// Counts its drops.
    struct Counts(Rc<Cell<u32>>, [u64; 64]);

    impl Drop for Counts {
        fn drop(&mut self) {
            self.0.set(self.0.get() + 1);
        }
    }

    #[test]
    fn a_place_is_used_again_by_values_of_its_size() {
        let drops = Rc::new(Cell::new(0));
        let first = placed(|| Counts(Rc::clone(&drops), [1; 64]));
        let at = address(&first);
        assert_eq!(first.1, [1; 64]);
        drop(first);
        assert_eq!((drops.get(), kept()), (1, 1));
        let other = placed(|| [0_u64; 8]);
        let second = placed(|| Counts(Rc::clone(&drops), [2; 64]));
        assert_eq!((address(&second), kept()), (at, 0));
        drop((second, other));
        assert_eq!((drops.get(), kept()), (2, 2));
    }

    #[test]
    fn alignment_tells_places_apart() {
        #[repr(align(64))]
        struct Aligned([u8; 64]);
        drop(placed(|| [0_u8; 64]));
        let aligned = placed(|| Aligned([1; 64]));
        assert_eq!((address(&aligned) % 64, aligned.0), (0, [1; 64]));
    }

    #[test]
    fn futures_run_where_they_were_made() {
        let text = String::from("given");
        let mut future = placed(|| async { text.len() + std::future::ready(1).await });
        let polled = future.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert_eq!(polled, Poll::Ready(6));
    }

    #[test]
    fn places_are_bounded_and_trimmed() {
        drop((0..=KEEP).map(|n| placed(|| [n; 8])).collect::<Vec<_>>());
        assert_eq!(kept(), KEEP);
        // Of further sizes some are kept.
        drop((placed(|| [0_u8; 1]), placed(|| [0_u8; 2]), placed(|| [0_u8; 3])));
        drop((placed(|| [0_u8; 4]), placed(|| [0_u8; 5]), placed(|| [0_u8; 6])));
        drop((placed(|| [0_u8; 7]), placed(|| [0_u8; 8]), placed(|| [0_u8; 9])));
        assert_eq!(kept(), KEEP + LAYOUTS - 1);
        assert!(!trim_places(), "none that was kept was needed");
        drop(placed(|| [0_usize; 8]));
        assert!(trim_places());
        assert_eq!(kept(), 1, "one at a time was needed");
        assert!(!trim_places());
        assert_eq!(kept(), 0);
    }

    #[test]
    fn a_panic_leaves_no_place_behind() {
        struct Panics;
        impl Drop for Panics {
            fn drop(&mut self) {
                panic!("on purpose");
            }
        }
        let making = catch_unwind(|| placed(|| -> [u8; 32] { panic!("on purpose") }).len());
        assert!(making.is_err());
        let dropping = catch_unwind(AssertUnwindSafe(|| drop(placed(|| (Panics, [0_u8; 32])))));
        assert!(dropping.is_err());
        assert_eq!((kept(), LIVE.get()), (0, 0));
    }

    #[test]
    fn a_thread_that_ends_frees_its_places() {
        thread_local! {
            // Made before the thread's places, so dropped after them.
            static LAST: RefCell<Option<Pin<Placed<[u8; 16]>>>> = const { RefCell::new(None) };
        }
        let ended = thread::spawn(|| {
            LAST.with(|_| ());
            LAST.set(Some(placed(|| [7; 16])));
            drop(placed(|| [8; 24]));
        });
        ended.join().expect("it ends well");
    }
}
