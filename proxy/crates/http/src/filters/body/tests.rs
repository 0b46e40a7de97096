use super::*;
use crate::body::Static;
use crate::kept::PURPOSE_BYTES;
use std::task::Waker;

/// Says everything twice, a byte a step, and adds a trailer.
struct Twice(Vec<u8>);

impl Transform for Twice {
    fn data(&mut self, input: &[u8], out: &mut Vec<u8>) -> Result<Step, StreamError> {
        let taken = if self.0.is_empty() { 1 } else { 0 };
        self.0.extend_from_slice(input.get(..taken).unwrap_or_default());
        out.extend(self.0.first());
        let more = taken > 0;
        if !more {
            self.0.clear();
        }
        Ok(Step { taken, more })
    }

    fn end(&mut self, trailers: &mut Option<Fields>, out: &mut Vec<u8>) -> Result<bool, StreamError> {
        out.push(b'.');
        trailers.get_or_insert_with(Fields::new).push(b"x-envoy-twice", b"yes");
        Ok(true)
    }
}

fn read(body: &mut impl Source) -> Vec<u8> {
    let mut cx = Context::from_waker(Waker::noop());
    let mut all = Vec::new();
    while let Poll::Ready(Ok(Fill::Data)) = body.poll_fill(&mut cx, usize::MAX) {
        let n = body.chunk().len().min(3);
        all.extend_from_slice(&body.chunk()[..n]);
        body.consume(n);
    }
    all
}

fn hold(body: &mut Filtered<'_, Static>, limit: usize, at_limit: AtLimit) -> Result<(Bytes, bool), Unheld> {
    let mut cx = Context::from_waker(Waker::noop());
    let mut body = body;
    match body.poll_hold(&mut cx, limit, at_limit) {
        Poll::Ready(held) => held.map(|h| (h.bytes, h.whole)),
        Poll::Pending => panic!("it waits for a body that is there"),
    }
}

#[test]
fn without_filters_the_source_shows_its_own_bytes() {
    let (mut source, keeper, dropped) = (Static("hello".into()), Rc::default(), Counter::default());
    let at = source.0.as_ptr();
    let mut body = Filtered::request(&mut source, &keeper, &dropped, BodyLength::Known(5));
    assert_eq!(body.chunk().as_ptr(), at);
    assert!(body.ends_after(5) && !body.ends_after(4));
    assert_eq!(read(&mut body), b"hello");
    assert_eq!(body.bytes(), 5);
    assert!(body.take_trailers().is_none());
}

#[test]
fn transforms_come_one_after_the_other() {
    let (mut source, keeper, dropped) = (Static("ab".into()), Rc::default(), Counter::default());
    let mut body = Filtered::request(&mut source, &keeper, &dropped, BodyLength::Known(2));
    (&mut body).transform(Box::new(Twice(vec![])));
    (&mut body).transform(Box::new(Twice(vec![])));
    assert_eq!(body.length(), BodyLength::Unknown);
    assert_eq!(read(&mut body), b"aaaabbbb...");
    assert_eq!(body.bytes(), 2);
    let trailers = body.take_trailers().expect("trailers");
    assert_eq!(trailers.joined(b"x-envoy-twice").as_deref(), Some("yes,yes"));
}

#[test]
fn what_was_waited_for_stays_in_front() {
    let (mut source, keeper, dropped) = (Static("hello".into()), Rc::default(), Counter::default());
    let mut body = Filtered::request(&mut source, &keeper, &dropped, BodyLength::Known(5));
    assert_eq!(hold(&mut body, 5, AtLimit::Refuse), Ok(("hello".into(), true)));
    assert!(body.ends_after(5) && !body.ends_after(4));
    (&mut body).transform(Box::new(Twice(vec![])));
    assert_eq!(hold(&mut body, 5, AtLimit::Refuse), Err(Unheld::TooLong));
    assert_eq!(hold(&mut body, 4, AtLimit::Stop), Ok(("hhee".into(), false)));
    assert_eq!(hold(&mut body, 100, AtLimit::Stop), Ok(("hheelllloo.".into(), true)));
    assert_eq!(read(&mut body), b"hheelllloo.");
}

#[test]
fn a_body_that_is_too_long_may_still_be_read() {
    for (at_limit, held) in [
        (AtLimit::Refuse, Err(Unheld::TooLong)),
        (AtLimit::Stop, Ok(("hell".into(), false))),
    ] {
        let (mut source, keeper, dropped) = (Static("hello".into()), Rc::default(), Counter::default());
        let mut body = Filtered::request(&mut source, &keeper, &dropped, BodyLength::Known(5));
        assert_eq!(hold(&mut body, 4, at_limit), held);
        assert_eq!(read(&mut body), b"hello");
    }
}

#[test]
fn what_the_worker_has_no_room_for_is_not_waited_for() {
    let keeper = Rc::default();
    let mut others = KeptBytes::new(&keeper, Purpose::Filter);
    assert!(others.set(PURPOSE_BYTES - 10));
    for (text, fits) in [("0123456789", true), ("0123456789a", false)] {
        let (mut source, dropped) = (Static(text.into()), Counter::default());
        let mut body = Filtered::request(&mut source, &keeper, &dropped, BodyLength::Known(11));
        let held = hold(&mut body, 64, AtLimit::Refuse);
        if fits {
            assert_eq!(held, Ok((text.into(), true)));
            assert!(!others.set(PURPOSE_BYTES - 9), "it counts while it is held");
            assert_eq!(read(&mut body), text.as_bytes());
            assert!(others.set(PURPOSE_BYTES), "what was passed on does not");
            others.shrink(PURPOSE_BYTES - 10);
        } else {
            assert_eq!(held, Err(Unheld::NoRoom));
        }
    }
    assert!(others.set(PURPOSE_BYTES));
}
