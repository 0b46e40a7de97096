//! Futures on the heap.

use std::future::Future;
use std::pin::Pin;

/// The future that `make` makes, on the heap. `Box::pin` makes it on the stack and copies it, all of its bytes, of which most
/// have no value yet: a request's are thousands.
#[inline]
pub(crate) fn boxed<F: Future>(make: impl FnOnce() -> F) -> Pin<Box<F>> {
    // The place first: what is made after it can be written there.
    let place = Box::new_uninit();
    Box::into_pin(Box::write(place, make()))
}
