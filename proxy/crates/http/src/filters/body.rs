//! A message's body on its way through the filters: held back where a filter waits for it, changed where one asks for
//! that. Filters that do neither leave the codec's own bytes where they are.

use std::cell::RefCell;
use std::fmt;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use heddle_telemetry::Counter;

use crate::body::{BodyLength, Fill, Source, StreamError};
use crate::hcm::{RequestBody, clean_trailers};
use crate::head::{Fields, Trailers};
use crate::kept::{Keeper, KeptBytes, Purpose};

/// Room that a transform has for the output of one step, so that a few bytes that stand for many are taken piece by
/// piece, as fast as the other side reads.
pub(crate) const STEP: usize = 16 * 1024;

/// What a transform did in one step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Step {
    /// Bytes of the input that it took.
    pub(crate) taken: usize,
    /// There is more to come of what it took, for which there was no room: the next step comes without new input.
    pub(crate) more: bool,
}

/// Changes a body while it streams. Whoever calls it bounds it: it gets its next turn when its output was passed on.
pub(crate) trait Transform {
    /// Takes bytes from the front of `input`; it may keep them. What comes of them is appended to `out`, about [`STEP`]
    /// bytes at most. `input` is empty only where [`Step::more`] was said.
    ///
    /// # Errors
    /// The body cannot be what it should be, and its message ends here.
    fn data(&mut self, input: &[u8], out: &mut Vec<u8>) -> Result<Step, StreamError>;

    /// The input is over. Appends what it still has to `out`, and may change, add or take the trailers. Called until it
    /// says that this was all.
    ///
    /// # Errors
    /// The body is not whole, and its message ends here.
    fn end(&mut self, trailers: &mut Option<Fields>, out: &mut Vec<u8>) -> Result<bool, StreamError>;
}

impl fmt::Debug for dyn Transform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Transform")
    }
}

/// One transform and what it has put out.
#[derive(Debug, Default)]
struct Stage {
    /// None holds bytes and leaves them as they are.
    transform: Option<Box<dyn Transform>>,
    /// What a filter has waited for; it comes before `out`.
    front: Bytes,
    out: Vec<u8>,
    /// How much of `out` is gone.
    gone: usize,
    /// The worker's account of what a filter waits for.
    account: Option<KeptBytes>,
    /// The next step comes without new input.
    more: bool,
    done: bool,
}

impl Stage {
    fn chunk(&self) -> &[u8] {
        match self.front.is_empty() {
            true => self.out.get(self.gone..).unwrap_or_default(),
            false => &self.front,
        }
    }

    fn len(&self) -> usize {
        self.front.len() + self.out.len() - self.gone
    }

    fn consume(&mut self, n: usize) {
        self.take(n);
        if let Some(account) = &mut self.account
            && self.front.is_empty()
            && self.gone == 0
        {
            // Not before is the memory free.
            account.shrink(self.out.len());
        }
    }

    fn take(&mut self, n: usize) {
        if !self.front.is_empty() {
            let n = n.min(self.front.len());
            self.front.advance(n);
            return;
        }
        self.gone = (self.gone + n).min(self.out.len());
        if self.gone == self.out.len() {
            self.gone = 0;
            self.out.clear();
            // What was held may have been long.
            self.out.shrink_to(2 * STEP);
        }
    }

    fn data(&mut self, input: &[u8]) -> Result<usize, StreamError> {
        let Some(transform) = &mut self.transform else {
            self.out.extend_from_slice(input);
            return Ok(input.len());
        };
        let step = transform.data(input, &mut self.out)?;
        self.more = step.more;
        Ok(step.taken)
    }

    fn end(&mut self, trailers: &mut Option<Fields>) -> Result<(), StreamError> {
        self.done = match &mut self.transform {
            Some(transform) => transform.end(trailers, &mut self.out)?,
            None => true,
        };
        Ok(())
    }

    /// Everything that it has put out, as one piece that stays where it is.
    fn gather(&mut self) -> Bytes {
        let out = std::mem::take(&mut self.out);
        let gone = std::mem::take(&mut self.gone);
        if self.front.is_empty() {
            self.front = Bytes::from(out).slice(gone..);
        } else if gone < out.len() {
            let both = [&self.front[..], out.get(gone..).unwrap_or_default()].concat();
            self.front = Bytes::from(both);
        }
        self.front.clone()
    }
}

/// What filters do to a body, in the order in which it comes to them.
#[derive(Debug, Default)]
pub(crate) struct Stages(Vec<Stage>);

impl Stages {
    pub(crate) fn push(&mut self, transform: Box<dyn Transform>) {
        self.0.push(Stage {
            transform: Some(transform),
            ..Stage::default()
        });
    }

    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }
}

/// What of a body a filter has waited for.
#[derive(Clone, Debug)]
pub(crate) struct Held {
    /// From the body's beginning.
    pub(crate) bytes: Bytes,
    /// Whether that is all of it.
    pub(crate) whole: bool,
}

/// What a filter that waits for a body does when it is longer than its limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AtLimit {
    /// It has waited in vain.
    Refuse,
    /// It takes what is there (`allow_partial_message`), and waits for no more.
    Stop,
}

/// Why a filter waited for a body in vain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unheld {
    /// It is longer than the filter's limit.
    TooLong,
    /// The worker keeps too much of others' already.
    NoRoom,
}

/// The body as the codec gives it, and what became of it.
struct Origin<'b, S> {
    source: &'b mut S,
    /// What filters wait for is kept for this connection.
    keeper: &'b Rc<Keeper>,
    /// Counts fields that were no trailers; none for an answer to the proxy itself.
    dropped: Option<&'b Counter>,
    of: Trailers,
    bytes: u64,
    ended: bool,
    trailers: Option<Fields>,
    remember: bool,
    seen: Option<Fields>,
}

impl<S: Source> Origin<'_, S> {
    /// The trailers that may travel on, if there are any: HAProxy 2.6 closes a connection for an empty header block.
    fn take_trailers(&mut self) -> Option<Fields> {
        let mut trailers = self.source.take_trailers()?;
        clean_trailers(self.of, self.dropped, &mut trailers);
        if trailers.is_empty() {
            return None;
        }
        if self.remember {
            self.seen = Some(trailers.clone());
        }
        Some(trailers)
    }

    fn consume(&mut self, n: usize) {
        self.bytes += n as u64;
        self.source.consume(n);
    }
}

/// A body as the filters leave it. Every body and every trailer section passes here.
pub(crate) struct Filtered<'b, S> {
    origin: Origin<'b, S>,
    stages: Stages,
    length: BodyLength,
    /// A filter waits for it, and reads.
    holding: bool,
    /// Why it will never come, which the request's runner is to be told.
    failed: Option<StreamError>,
}

impl<'b, S: Source> Filtered<'b, S> {
    /// A request's body. Fields that were no trailers are added to `dropped`.
    pub(crate) fn request(source: &'b mut S, keeper: &'b Rc<Keeper>, dropped: &'b Counter, length: BodyLength) -> Self {
        Self::new(source, keeper, Trailers::Listed, Some(dropped), length)
    }

    fn new(
        source: &'b mut S,
        keeper: &'b Rc<Keeper>,
        of: Trailers,
        dropped: Option<&'b Counter>,
        length: BodyLength,
    ) -> Self {
        Self {
            origin: Origin {
                source,
                keeper,
                dropped,
                of,
                bytes: 0,
                ended: false,
                trailers: None,
                remember: false,
                seen: None,
            },
            stages: Stages::default(),
            length,
            holding: false,
            failed: None,
        }
    }

    /// A response's body. Its trailers are remembered as they came.
    pub(crate) fn response(
        source: &'b mut S,
        keeper: &'b Rc<Keeper>,
        of: Trailers,
        dropped: Option<&'b Counter>,
    ) -> Self {
        let mut body = Self::new(source, keeper, of, dropped, BodyLength::Unknown);
        body.origin.remember = true;
        body
    }

    /// Every filter has seen the head: what they do to the body.
    pub(crate) fn set_stages(&mut self, stages: Stages) {
        self.stages = stages;
    }

    /// Why it will never come, where a filter has found that out while it waited.
    pub(crate) fn failed(&self) -> Option<StreamError> {
        self.failed
    }

    /// Where it comes from.
    pub(crate) fn source(&mut self) -> &mut S {
        self.origin.source
    }

    /// Bytes taken from where it comes from.
    pub(crate) fn bytes(&self) -> u64 {
        self.origin.bytes
    }

    /// Its length, as the filters leave it.
    pub(crate) fn length(&self) -> BodyLength {
        self.length
    }

    /// A response's trailers, before filters changed them.
    pub(crate) fn take_seen(&mut self) -> Option<Fields> {
        self.origin.seen.take()
    }

    /// Whether a filter waits for it.
    pub(crate) fn is_holding(&self) -> bool {
        self.holding
    }

    /// A filter is about to run: whether it waits for the body is to be seen.
    pub(crate) fn before_filter(&mut self) {
        self.holding = false;
    }
}

/// Ready when the last stage, or the source where there is none, has bytes or is at its end.
fn poll_fill<S: Source>(
    stages: &mut [Stage],
    origin: &mut Origin<'_, S>,
    cx: &mut Context<'_>,
    room: usize,
) -> Poll<Result<Fill, StreamError>> {
    loop {
        let Some(last) = stages.last() else {
            let fill = ready!(origin.source.poll_fill(cx, room))?;
            if fill == Fill::End && !origin.ended {
                origin.ended = true;
                origin.trailers = origin.take_trailers();
            }
            return Poll::Ready(Ok(fill));
        };
        if last.len() > 0 {
            return Poll::Ready(Ok(Fill::Data));
        }
        if last.done {
            return Poll::Ready(Ok(Fill::End));
        }
        ready!(poll_step(stages, origin, cx, room))?;
    }
}

/// Gives the last stage a piece of its input, or tells it that there is no more.
fn poll_step<S: Source>(
    stages: &mut [Stage],
    origin: &mut Origin<'_, S>,
    cx: &mut Context<'_>,
    room: usize,
) -> Poll<Result<(), StreamError>> {
    let Some((last, before)) = stages.split_last_mut() else {
        return Poll::Ready(Ok(()));
    };
    // A turn of the task is so many steps, and no more: a peer's bytes may stand for a thousand times as many.
    let turn = ready!(tokio::task::coop::poll_proceed(cx));
    if last.more {
        turn.made_progress();
        last.data(&[])?;
        return Poll::Ready(Ok(()));
    }
    let fill = ready!(poll_fill(before, origin, cx, room))?;
    turn.made_progress();
    match (fill, before.last_mut()) {
        (Fill::End, _) => last.end(&mut origin.trailers)?,
        (Fill::Data, Some(input)) => {
            let n = last.data(input.chunk())?;
            input.consume(n);
        }
        (Fill::Data, None) => {
            let n = last.data(origin.source.chunk())?;
            origin.consume(n);
        }
    }
    Poll::Ready(Ok(()))
}

impl<S: Source> Source for Filtered<'_, S> {
    fn poll_fill(&mut self, cx: &mut Context<'_>, room: usize) -> Poll<Result<Fill, StreamError>> {
        if self.stages.0.is_empty() {
            return self.origin.source.poll_fill(cx, room);
        }
        poll_fill(&mut self.stages.0, &mut self.origin, cx, room)
    }

    fn chunk(&self) -> &[u8] {
        match self.stages.0.last() {
            None => self.origin.source.chunk(),
            Some(last) => last.chunk(),
        }
    }

    fn consume(&mut self, n: usize) {
        match self.stages.0.last_mut() {
            None => self.origin.consume(n),
            Some(last) => last.consume(n),
        }
    }

    fn ends_after(&self, n: usize) -> bool {
        match self.stages.0.last() {
            None => self.origin.source.ends_after(n),
            Some(last) => last.done && last.len() <= n && self.origin.trailers.is_none(),
        }
    }

    fn take_trailers(&mut self) -> Option<Fields> {
        match self.stages.0.is_empty() {
            true => self.origin.take_trailers(),
            false => self.origin.trailers.take(),
        }
    }

    fn dropped(&self) -> Option<StreamError> {
        self.origin.source.dropped()
    }
}

impl<B: RequestBody> RequestBody for Filtered<'_, B> {
    fn poll_gone(&mut self, cx: &mut Context<'_>) -> Poll<StreamError> {
        self.origin.source.poll_gone(cx)
    }

    fn watch(&mut self, cx: &mut Context<'_>) -> Result<bool, StreamError> {
        match self.failed {
            Some(error) => Err(error),
            // The filter reads, and learns whatever there is to learn.
            None if self.holding => Ok(false),
            None => self.origin.source.watch(cx),
        }
    }

    fn tunnel(&mut self) {
        self.stages.clear();
        self.origin.ended = false;
        self.origin.source.tunnel();
    }
}

/// A request's body before a filter.
pub(crate) trait RequestContent {
    /// Its length, as the filters before leave it.
    fn length(&self) -> BodyLength;
    /// Says what its length has become.
    fn set_length(&mut self, length: BodyLength);
    /// Has it changed, after what the filters before do.
    fn transform(&mut self, transform: Box<dyn Transform>);
    /// Ready when it is there whole, or longer than a filter wants to wait for.
    fn poll_hold(&mut self, cx: &mut Context<'_>, limit: usize, at_limit: AtLimit) -> Poll<Result<Held, Unheld>>;
}

impl<B: RequestBody> RequestContent for &mut Filtered<'_, B> {
    fn length(&self) -> BodyLength {
        self.length
    }

    fn set_length(&mut self, length: BodyLength) {
        self.length = length;
    }

    fn transform(&mut self, transform: Box<dyn Transform>) {
        self.length = BodyLength::Unknown;
        self.stages.push(transform);
    }

    fn poll_hold(&mut self, cx: &mut Context<'_>, limit: usize, at_limit: AtLimit) -> Poll<Result<Held, Unheld>> {
        match hold(&mut self.stages, &mut self.origin, cx, limit, at_limit) {
            Poll::Ready(Ok(held)) => Poll::Ready(held),
            Poll::Ready(Err(error)) => {
                // The request is over, and the filter with it.
                self.failed = Some(error);
                Poll::Pending
            }
            Poll::Pending => {
                self.holding = true;
                Poll::Pending
            }
        }
    }
}

/// Ready when a body is there whole, or longer than a filter wants to wait for.
fn hold<S: Source>(
    stages: &mut Stages,
    origin: &mut Origin<'_, S>,
    cx: &mut Context<'_>,
    limit: usize,
    at_limit: AtLimit,
) -> Poll<Result<Result<Held, Unheld>, StreamError>> {
    if stages.0.is_empty() {
        stages.0.push(Stage::default());
    }
    loop {
        let Some(last) = stages.0.last_mut() else {
            return Poll::Ready(Ok(Err(Unheld::TooLong)));
        };
        let len = last.len();
        let account = last
            .account
            .get_or_insert_with(|| KeptBytes::new(origin.keeper, Purpose::Filter));
        if !account.set(len) {
            return Poll::Ready(Ok(Err(Unheld::NoRoom)));
        }
        if last.done && len <= limit {
            let bytes = last.gather();
            return Poll::Ready(Ok(Ok(Held { bytes, whole: true })));
        }
        match at_limit {
            AtLimit::Refuse if len > limit => return Poll::Ready(Ok(Err(Unheld::TooLong))),
            AtLimit::Stop if len >= limit => {
                let bytes = last.gather().slice(..limit);
                return Poll::Ready(Ok(Ok(Held { bytes, whole: false })));
            }
            _ => {}
        }
        let room = limit.saturating_sub(len).saturating_add(1);
        ready!(poll_step(&mut stages.0, origin, cx, room))?;
    }
}

/// A response's body before a filter that waits for it.
pub(crate) trait ResponseSource {
    /// Ready when it is there, behind what the filters before do to it, as for a request's.
    fn poll_hold_response(
        &mut self,
        stages: &mut Stages,
        cx: &mut Context<'_>,
        limit: usize,
        at_limit: AtLimit,
    ) -> Poll<Result<Held, Unheld>>;
}

impl<S: Source> ResponseSource for &mut Filtered<'_, S> {
    fn poll_hold_response(
        &mut self,
        stages: &mut Stages,
        cx: &mut Context<'_>,
        limit: usize,
        at_limit: AtLimit,
    ) -> Poll<Result<Held, Unheld>> {
        match hold(stages, &mut self.origin, cx, limit, at_limit) {
            Poll::Ready(Ok(held)) => Poll::Ready(held),
            Poll::Ready(Err(error)) => {
                self.failed = Some(error);
                Poll::Pending
            }
            Poll::Pending => Poll::Pending,
        }
    }
}

/// The same for a response's, for as long as a filter waits.
pub(crate) type SharedResponse<'c> = RefCell<dyn ResponseSource + 'c>;

/// A request's body for as long as filters run: a filter that waits and who looks after it both look at it.
pub(crate) type Shared<'c> = RefCell<dyn RequestContent + 'c>;

/// A response's body before the filters.
#[derive(Debug)]
pub(crate) struct ResponseContent {
    /// Its length, as the filters before leave it.
    pub(crate) length: BodyLength,
    /// What they do to it.
    pub(crate) stages: Stages,
}

impl ResponseContent {
    /// Lets go of what was done to a response.
    pub(crate) fn clear(&mut self) {
        let Self { length, stages } = self;
        *length = BodyLength::Empty;
        stages.clear();
    }
}

impl Default for ResponseContent {
    fn default() -> Self {
        Self {
            length: BodyLength::Empty,
            stages: Stages::default(),
        }
    }
}

#[cfg(test)]
mod tests;
