//! Heads kept for later messages of the worker, for their memory.

use std::cell::RefCell;

use heddle_memory::Spares;

use super::{RequestHead, ResponseHead};

/// Most of each kind: as many as usually come together on a connection of HTTP/2. Each keeps 16 KiB at most.
const KEEP: usize = 64;

thread_local! {
    static REQUESTS: RefCell<Spares<RequestHead>> = const { RefCell::new(Spares::new(KEEP)) };
    static RESPONSES: RefCell<Spares<ResponseHead>> = const { RefCell::new(Spares::new(KEEP)) };
}

/// [`Spares::trim`] of both kinds.
pub(crate) fn trim_spares() -> bool {
    REQUESTS.with_borrow_mut(Spares::trim) | RESPONSES.with_borrow_mut(Spares::trim)
}

impl RequestHead {
    /// An empty one.
    pub(crate) fn spare() -> Self {
        REQUESTS.with_borrow_mut(Spares::take).unwrap_or_default()
    }

    /// It is not needed any more.
    pub(crate) fn give_back(mut self) {
        self.clear();
        REQUESTS.with_borrow_mut(|kept| kept.keep(self));
    }
}

impl ResponseHead {
    /// An empty one.
    pub(crate) fn spare() -> Self {
        RESPONSES.with_borrow_mut(Spares::take).unwrap_or_default()
    }

    /// It is not needed any more.
    pub(crate) fn give_back(mut self) {
        self.clear();
        RESPONSES.with_borrow_mut(|kept| kept.keep(self));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_come_back_empty_and_bounded() {
        for _ in 0..2 * KEEP {
            let (mut request, mut response) = (RequestHead::default(), ResponseHead::default());
            request.set_host("secret");
            request.fields.push(b"x-a", b"secret");
            response.fields.push(b"x-a", b"secret");
            response.status = 503;
            request.give_back();
            response.give_back();
        }
        assert_eq!(REQUESTS.with_borrow(Spares::len), KEEP);
        assert_eq!(RESPONSES.with_borrow(Spares::len), KEEP);
        let (request, response) = (RequestHead::spare(), ResponseHead::spare());
        assert!(request.host().is_empty() && request.fields.is_empty());
        assert!(response.status != 503 && response.fields.is_empty());
        assert!(trim_spares(), "some were needed");
        assert!(!trim_spares());
        assert_eq!(
            REQUESTS.with_borrow(Spares::len) + RESPONSES.with_borrow(Spares::len),
            0
        );
    }
}
