//! `connection_balance_config`: which worker serves a new connection.

use super::{Result, pb, required, unpack};
use crate::path::Path;
use crate::snapshot::ConnectionBalance;

/// The extension that Envoy has for Intel's Dynamic Load Balancer; here it is software.
const DLB: &str = "envoy.network.connection_balance.dlb";

/// A listener's balance; the kernel's hash by default.
pub(super) fn connections(config: &pb::listener::Listener, path: &Path<'_>) -> Result<ConnectionBalance> {
    use pb::listener::listener::connection_balance_config::BalanceType;
    let Some(balance) = &config.connection_balance_config else {
        return Ok(ConnectionBalance::Kernel);
    };
    let here = path.field("connection_balance_config");
    if config.bind_to_port == Some(false) {
        return Err(
            here.error("has no effect with bind_to_port: false; set it on the listener that accepts the connections")
        );
    }
    let extension = match &balance.balance_type {
        Some(BalanceType::ExactBalance(_)) => return Ok(ConnectionBalance::Exact),
        Some(BalanceType::ExtendBalance(extension)) => extension,
        Some(BalanceType::CpuLocalityBalance(_)) => {
            let here = here.field("cpu_locality_balance");
            return Err(here.unsupported("it", "use exact_balance or extend_balance"));
        }
        None => return Err(here.error("one of exact_balance, extend_balance must be set")),
    };
    let here = here.field("extend_balance");
    if extension.name != DLB {
        return Err(here
            .field("name")
            .unsupported(&extension.name, "use envoy.network.connection_balance.dlb"));
    }
    let here = here.field("typed_config");
    let any = required(extension.typed_config.as_ref(), &here)?;
    match heddle_api::message_name(&any.type_url) {
        "envoy.extensions.network.connection_balance.dlb.v3alpha.Dlb" => {
            unpack::<pb::dlb::Dlb>(any, &here)?;
            Ok(ConnectionBalance::LoadAware)
        }
        other => Err(here.unsupported(other, "use envoy.extensions.network.connection_balance.dlb.v3alpha.Dlb")),
    }
}
