//! What a filter sees of a request.

use std::future::poll_fn;
use std::marker::PhantomData;
use std::time::Duration;

use heddle_net::ConnectionInfo;
use serde_json::{Map, Value};

use super::HttpFilter;
use super::body::{AtLimit, Held, Shared, SharedResponse, Step, Transform, Unheld};
use crate::body::{BodyLength, StreamError};
use crate::hcm::{Environment, Exchange, choose};
use crate::head::{Fields, Known};
use crate::local_reply::LocalReply;
use crate::route::Selected;

/// What a filter decides about a request.
#[derive(Debug)]
pub(crate) enum Verdict {
    /// Go on.
    Continue,
    /// Answer with this.
    Reply(Box<LocalReply>),
}

impl Verdict {
    /// That of a filter which cannot be asked: it lets nothing pass.
    pub(super) fn broken() -> Self {
        Self::from(LocalReply {
            status: 500,
            details: "filter_cannot_be_asked".into(),
            ..LocalReply::default()
        })
    }
}

impl From<LocalReply> for Verdict {
    fn from(reply: LocalReply) -> Self {
        Self::Reply(Box::new(reply))
    }
}

/// A request, or its answer, before a filter.
pub(crate) struct Call<'c> {
    pub(crate) exchange: &'c mut Exchange,
    pub(crate) env: Environment<'c>,
    pub(super) number: usize,
    /// None when it is the answer's turn.
    pub(super) body: Option<&'c Shared<'c>>,
    /// Where the answer's body comes from, while a filter waits before it.
    pub(super) answer: Option<&'c SharedResponse<'c>>,
    /// The filter waits.
    pub(super) waits: bool,
}

impl<'c> Call<'c> {
    pub(crate) fn connection(&self) -> &'c ConnectionInfo {
        self.env.connection
    }

    /// Waits for the request's body, as the filters before leave it; only where a filter waits. The body stays where it is, in
    /// front of the request: the next filter, and the upstream, get it from its beginning. At most `limit` bytes and one read more
    /// are held.
    ///
    /// # Errors
    /// It is longer than `limit`, which is to be told with this answer (413), or there is no room for it (503).
    pub(crate) async fn body(&mut self, limit: usize, at_limit: AtLimit) -> Result<Held, Box<LocalReply>> {
        let nothing = Held {
            bytes: bytes::Bytes::new(),
            whole: true,
        };
        let Some(body) = self.body.filter(|_| self.has_body()) else {
            return Ok(nothing);
        };
        match poll_fn(|cx| body.borrow_mut().poll_hold(cx, limit, at_limit)).await {
            Ok(held) => Ok(held),
            Err(Unheld::TooLong) => {
                self.env.hcm.stats.rq_too_large.inc();
                Err(Box::new(LocalReply::too_large()))
            }
            Err(Unheld::NoRoom) => {
                self.env.hcm.stats.rq_no_room.inc();
                Err(Box::new(LocalReply::no_room()))
            }
        }
    }

    /// Whether the request has a body that is the upstream's to read: raw bytes after an upgrade are none.
    pub(crate) fn has_body(&self) -> bool {
        !matches!(self.request_length(), BodyLength::Empty | BodyLength::Tunnel)
    }

    /// The length of the request's body, as the filters before leave it.
    pub(crate) fn request_length(&self) -> BodyLength {
        self.body.map_or(BodyLength::Empty, |body| body.borrow().length())
    }

    /// Says that nobody knows how long the request's body is, where its head said it.
    pub(crate) fn forget_request_length(&mut self) {
        if let Some(body) = self.body.filter(|_| self.has_body()) {
            body.borrow_mut().set_length(BodyLength::Unknown);
        }
    }

    /// Says how long the request's body is, where nobody knew.
    pub(crate) fn set_request_length(&mut self, length: usize) {
        let Some(body) = self.body.filter(|_| self.has_body()) else {
            return;
        };
        body.borrow_mut().set_length(BodyLength::Known(length as u64));
        let fields = &mut self.exchange.request.fields;
        fields.remove_known(Known::ContentLength);
        fields.push_number(Known::ContentLength, length as u64);
    }

    /// Has the request's body changed while it streams, after what the filters before do to it.
    pub(crate) fn change_request(&mut self, transform: Box<dyn Transform>) {
        if let Some(body) = self.body.filter(|_| self.has_body()) {
            body.borrow_mut().transform(transform);
            self.exchange.request.fields.remove_known(Known::ContentLength);
        }
    }

    /// The length of the response's body, as the filters before leave it.
    pub(crate) fn response_length(&self) -> BodyLength {
        self.exchange.response_content.length
    }

    /// Has the response's body changed while it streams, after what the filters before do to it.
    pub(crate) fn change_response(&mut self, transform: Box<dyn Transform>) {
        let content = &mut self.exchange.response_content;
        if !matches!(content.length, BodyLength::Empty | BodyLength::Tunnel) {
            content.stages.push(transform);
            content.length = BodyLength::Unknown;
            self.exchange.response.fields.remove_known(Known::ContentLength);
        }
    }

    /// This filter has to wait before the head may go on: [`HttpFilter::on_request_waiting`] is next, or
    /// [`HttpFilter::on_response_waiting`].
    pub(crate) fn wait(&mut self) {
        self.waits = true;
    }

    /// Waits for the response's body, as the filters before leave it, or for the first `limit` bytes of it. It stays
    /// where it is. Only where a filter waits; elsewhere, where there is no body, and where there is no room for it, it is empty.
    pub(crate) async fn response_body(&mut self, limit: usize) -> Held {
        let content = &mut self.exchange.response_content;
        let there = !matches!(content.length, BodyLength::Empty | BodyLength::Tunnel);
        let held = match self.answer.filter(|_| there) {
            None => None,
            Some(answer) => {
                let stages = &mut content.stages;
                poll_fn(|cx| answer.borrow_mut().poll_hold_response(stages, cx, limit, AtLimit::Stop))
                    .await
                    .ok()
            }
        };
        held.unwrap_or(Held {
            bytes: bytes::Bytes::new(),
            whole: true,
        })
    }

    /// The response goes without its body, and without trailers. What comes of it is read and forgotten, so that its
    /// connection can be used again.
    pub(crate) fn drop_response_body(&mut self) {
        let content = &mut self.exchange.response_content;
        if !matches!(content.length, BodyLength::Empty | BodyLength::Tunnel) {
            content.stages.push(Box::new(Forget));
        }
        content.length = BodyLength::Empty;
    }

    /// Adds fields to the request's dynamic metadata. False, and counted, when there is no room for them.
    pub(crate) fn merge_metadata(&mut self, namespace: &str, fields: Map<String, Value>) -> bool {
        if fields.is_empty() {
            return true;
        }
        let metadata = self.exchange.request.metadata.get_or_insert_default();
        let fits = metadata.merge(namespace, fields).is_ok();
        if !fits {
            self.env.hcm.stats.metadata_overflow.inc();
        }
        fits
    }

    /// Chooses the route again, by what the request is like now. The filters that are switched off stay so.
    pub(crate) fn choose_route(&mut self) {
        self.exchange.selected = choose(self.env, self.exchange);
    }

    /// What the route says to this filter.
    pub(crate) fn route_configs<F: HttpFilter>(&self) -> RouteConfigs<F> {
        let said = |selected: &&Selected| {
            selected
                .said_to(self.number)
                .is_some_and(|said| !said.levels.is_empty())
        };
        RouteConfigs {
            selected: self.exchange.selected.as_ref().filter(said).cloned(),
            number: self.number,
            filter: PhantomData,
        }
    }
}

/// Makes nothing of a body.
struct Forget;

impl Transform for Forget {
    fn data(&mut self, input: &[u8], _: &mut Vec<u8>) -> Result<Step, StreamError> {
        Ok(Step {
            taken: input.len(),
            more: false,
        })
    }

    fn end(&mut self, trailers: &mut Option<Fields>, _: &mut Vec<u8>) -> Result<bool, StreamError> {
        *trailers = None;
        Ok(true)
    }
}

/// What table, virtual host, route and weighted cluster say to a filter. Outlives a change of the route.
pub(crate) struct RouteConfigs<F> {
    selected: Option<Selected>,
    number: usize,
    filter: PhantomData<F>,
}

impl<F> Default for RouteConfigs<F> {
    fn default() -> Self {
        Self {
            selected: None,
            number: 0,
            filter: PhantomData,
        }
    }
}

impl<F> std::fmt::Debug for RouteConfigs<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RouteConfigs")
            .field("selected", &self.selected.is_some())
            .finish()
    }
}

impl<F: HttpFilter> RouteConfigs<F> {
    /// The most specific first.
    pub(crate) fn all(&self) -> impl DoubleEndedIterator<Item = &F::Route> {
        let said = self.selected.as_ref().and_then(|s| s.said_to(self.number));
        said.into_iter()
            .flat_map(|said| &said.levels)
            .filter_map(F::route_config)
    }

    /// The most specific.
    pub(crate) fn first(&self) -> Option<&F::Route> {
        self.all().next()
    }
}

/// A request that is over.
#[derive(Clone, Copy)]
pub(crate) struct End<'e> {
    pub(crate) exchange: &'e Exchange,
    pub(crate) connection: &'e ConnectionInfo,
    /// From the beginning of its head to the end of its answer.
    pub(crate) took: Duration,
}
