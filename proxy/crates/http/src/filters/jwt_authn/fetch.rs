//! Keys that are fetched, before tokens are held against them.

use std::rc::Rc;
use std::sync::Arc;

use heddle_config::filters::jwt_authn::{Keys, Requirement};
use heddle_jwt::{KeySet, Token};

use super::verify::{Asked, Brought};
use super::{JwtAuthn, extract};
use crate::filters::Call;
use crate::hcm::Exchange;
use crate::jwks::{Fetches, RemoteKeys};
use crate::worker::HttpWorker;

/// Where a provider's keys are.
pub(super) enum Source {
    Local(Arc<KeySet>),
    Remote(Rc<RemoteKeys>),
}

impl Source {
    pub(super) fn new(keys: &Keys, worker: &HttpWorker, fetches: &Fetches) -> Self {
        match keys {
            Keys::Local(keys) => Self::Local(Arc::clone(keys)),
            Keys::Remote(source) => Self::Remote(worker.jwks.hold(source, fetches)),
        }
    }

    /// The keys that are here.
    pub(super) fn good(&self) -> Option<Arc<KeySet>> {
        match self {
            Self::Local(keys) => Some(Arc::clone(keys)),
            Self::Remote(keys) => keys.good(),
        }
    }

    fn is_missing(&self) -> bool {
        matches!(self, Self::Remote(keys) if keys.good().is_none())
    }
}

impl JwtAuthn {
    /// Whether a requirement might have to wait for keys.
    pub(super) fn misses_keys(&self) -> bool {
        self.keys.iter().any(Source::is_missing)
    }

    /// Waits for the keys that a requirement needs for this request. A token that would be refused without them, such as
    /// one of another issuer or an old one, has none fetched.
    pub(super) async fn fetch(&self, requirement: &Requirement, call: &mut Call<'_>) -> Brought {
        let mut brought = Brought::default();
        for provider in self.needed(requirement, call.exchange) {
            if let Some(Source::Remote(keys)) = self.keys.get(provider) {
                brought.push((provider, keys.get(&self.fetches).await));
            }
        }
        brought
    }

    /// Providers whose keys are not here, and are needed.
    fn needed(&self, requirement: &Requirement, exchange: &Exchange) -> Vec<usize> {
        let mut needed = Vec::new();
        self.each_asked(requirement, &mut |asked| {
            for sent in extract::tokens(asked.extractor, &exchange.request) {
                if asked
                    .provider
                    .is_some_and(|provider| self.is_known(provider, &sent.text))
                {
                    continue;
                }
                let Ok(token) = Token::parse(&sent.text) else { continue };
                if let Ok((number, _)) = self.claims(asked, &sent, &token, exchange.start)
                    && self.keys.get(number).is_some_and(Source::is_missing)
                    && !needed.contains(&number)
                {
                    needed.push(number);
                }
            }
        });
        needed
    }

    fn each_asked<'c>(&'c self, requirement: &'c Requirement, see: &mut dyn FnMut(Asked<'c>)) {
        match requirement {
            Requirement::Nothing => {}
            Requirement::Any { of: all, .. } | Requirement::All(all) => {
                for one in all {
                    self.each_asked(one, see);
                }
            }
            Requirement::Provider { provider, audiences } => {
                if let Some(asked) = self.of_provider(*provider, audiences.as_ref()) {
                    see(asked);
                }
            }
            Requirement::Allow(allow) => see(self.of_any(*allow)),
        }
    }
}
