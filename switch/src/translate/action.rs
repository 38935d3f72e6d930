//! Actions with their arguments.

use ultima_p4runtime::v1::{self, action::Param};

use ultima_engine::ActionCall;

pub(super) fn call(action: v1::Action) -> ActionCall {
    let params = action.params.into_iter();
    ActionCall {
        action: action.action_id,
        params: params.map(|p| (p.param_id, p.value)).collect(),
    }
}

pub(super) fn action_message(call: ActionCall) -> v1::Action {
    let params = call.params.into_iter();
    let param = |(param_id, value)| Param { param_id, value };
    v1::Action {
        action_id: call.action,
        params: params.map(param).collect(),
    }
}
