//! The HTTP connection manager: what happens to every request before and after the filters and the router.

mod exchange;
mod names;
mod path;
mod request;
mod response;
mod stats;
mod stream;
mod xfcc;

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use heddle_config::snapshot::{HttpConnectionManager, PrematureResetLimits, RouteSource, TrafficDirection};
use heddle_net::ConnectionInfo;
use heddle_telemetry::Counter;
use heddle_telemetry::access_log::OpenError;
use tokio::time::Instant;

pub use path::{Normalized, PathError, PathRules, normalize as normalize_path};
pub use xfcc::apply as forward_client_cert;

pub(crate) use xfcc::ClientElement;

pub(crate) use exchange::Exchange;
pub(crate) use request::decline_h2c;
pub(crate) use response::{clean_trailers, finish_head, local_head};
pub(crate) use stats::{Active, HcmStats};
pub(crate) use stream::{
    Environment, Facts, IdleWatch, Outcome, Reply, RequestBody, ask_for_body, choose, filter_head, handle,
    response_ops, send_head,
};

use names::NameStats;

use crate::access_log::AccessLogs;
use crate::filters::{self, Filter, Setup};
use crate::h1::Limits;
use crate::head::RequestHead;
use crate::moving::Moves;
use crate::overload::Overload;
use crate::route::BoundTable;
use crate::worker::HttpWorker;

/// Bound on the arrival of a request head where the configuration names none.
const DEFAULT_HEADERS_TIMEOUT: Duration = Duration::from_secs(60);

/// A connection manager ready to serve on one worker. Built once per configuration, then shared by its connections.
pub struct HcmRuntime {
    pub(crate) config: Arc<HttpConnectionManager>,
    pub(crate) stats: HcmStats,
    pub(crate) filters: Vec<Filter>,
    pub(crate) filter_chain: Option<Arc<str>>,
    pub(crate) limits: Limits,
    pub(crate) premature_resets: PrematureResetLimits,
    pub(crate) overload: Rc<Overload>,
    /// Of a listener that places its connections by load.
    pub(crate) moves: Option<Rc<Moves>>,
    pub(crate) path_rules: PathRules,
    /// Requests sent to their path with slashes in place of escaped ones.
    pub(crate) path_redirected: Counter,
    /// Requests refused for their path.
    pub(crate) path_refused: Counter,
    pub(crate) names: NameStats,
    /// Fields that were no trailers.
    pub(crate) trailers_dropped: Counter,
    logs: AccessLogs,
    inline: Option<Rc<BoundTable>>,
    table: RefCell<(u64, Option<Rc<BoundTable>>)>,
}

impl HcmRuntime {
    /// Prepares a connection manager of a filter chain for this worker: looks metrics up, opens access logs. `overload` is
    /// the worker's, or one that nobody sets for a listener with `bypass_overload_manager`. With `moves`, connections leave for
    /// other workers.
    ///
    /// # Errors
    /// An access log file cannot be opened.
    pub fn new(
        worker: &HttpWorker,
        config: Arc<HttpConnectionManager>,
        direction: TrafficDirection,
        filter_chain: &Arc<str>,
        overload: Rc<Overload>,
        moves: Option<Rc<Moves>>,
    ) -> Result<Rc<Self>, OpenError> {
        let logs = AccessLogs::open(&worker.logs, &config.access_logs)?;
        let labels = [("http_conn_manager_prefix", &*config.stat_prefix)];
        Ok(Rc::new(Self {
            path_rules: PathRules {
                normalize: config.normalize_path,
                merge_slashes: config.merge_slashes,
                escaped_slashes: config.escaped_slashes,
            },
            path_redirected: worker
                .stats
                .counter("envoy_http_downstream_rq_redirected_with_normalized_path", &labels),
            path_refused: worker.stats.counter("heddle_http_path_refused_total", &labels),
            names: NameStats::new(&worker.stats, &labels),
            trailers_dropped: worker.stats.counter("heddle_http_trailers_dropped_total", &labels),
            stats: HcmStats::new(&worker.stats, &config.stat_prefix),
            filters: {
                let setup = Setup {
                    worker,
                    direction,
                    stat_prefix: &config.stat_prefix,
                };
                config.filters.iter().map(|f| Filter::new(&f.config, &setup)).collect()
            },
            filter_chain: (!filter_chain.is_empty()).then(|| Arc::clone(filter_chain)),
            limits: Limits {
                max_bytes: config.max_headers_bytes,
                max_count: config.max_headers_count.min(crate::h1::MAX_FIELDS),
            },
            premature_resets: worker.runtime.premature_resets,
            overload,
            moves,
            logs,
            inline: match &config.routes {
                RouteSource::Inline(table) => Some(Rc::new(BoundTable::new(Arc::clone(table), &config.filters))),
                RouteSource::Rds(_) => None,
            },
            table: RefCell::default(),
            config,
        }))
    }

    /// The configuration.
    pub fn config(&self) -> &Arc<HttpConnectionManager> {
        &self.config
    }

    /// The route table in force.
    pub(crate) fn routes(&self, worker: &HttpWorker) -> Option<Rc<BoundTable>> {
        if let Some(table) = &self.inline {
            return Some(Rc::clone(table));
        }
        let mut cached = self.table.borrow_mut();
        if cached.0 != worker.generation() {
            let RouteSource::Rds(name) = &self.config.routes else {
                return None;
            };
            let table = worker.route_table(name);
            let bound = table.map(|table| Rc::new(BoundTable::new(table, &self.config.filters)));
            *cached = (worker.generation(), bound);
        }
        cached.1.clone()
    }

    /// Applies `headers_with_underscores_action` to a request. False when it is refused.
    pub(crate) fn admits_names(&self, head: &mut RequestHead) -> bool {
        let action = self.config.underscores;
        self.names.admit(action, &mut head.fields, head.protocol)
    }

    /// Bound on the arrival of a request head.
    pub(crate) fn headers_timeout(&self) -> Duration {
        if self.config.request_headers_timeout.is_zero() {
            DEFAULT_HEADERS_TIMEOUT
        } else {
            self.config.request_headers_timeout
        }
    }

    /// Writes statistics and logs of a finished request.
    pub(crate) fn finish(&self, exchange: &mut Exchange, connection: &ConnectionInfo, now: Instant) {
        self.stats.rq_completed.inc();
        self.stats.answered(exchange.status);
        let took = now.duration_since(exchange.begun);
        self.stats.rq_time.record(took.as_secs_f64() * 1000.0);
        filters::on_end(self, exchange, connection, took);
        if self.logs.is_empty() {
            return;
        }
        let context = exchange.log_context(connection, Some(took));
        self.logs
            .write(&self.config.access_logs, &context, &self.stats.log_dropped);
    }
}
