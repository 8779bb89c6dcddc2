//! Interprets responses: slurmrestd reports the same problem in many ways, all of which are handled here.

use super::{
    Call, Error,
    call::Kind,
    error::{Refusal, code},
    transport::{Reply, Request},
};
use crate::{
    version::RestVersion,
    wire::{Body, Envelope, ErrorEntry, Nothing, StepStatus, Warning, decode},
};

/// slurmctld is unreachable in one of several ways (connect, send, receive, shut down), or slurmdbd is.
const DOWN: [i64; 6] = [code::CONTROLLER_UNREACHABLE, 1801, 1802, 1803, 1804, code::DATABASE_UNREACHABLE];

/// How much of a non-JSON response is included in a message.
const MAX_TEXT: usize = 200;

/// Whether the status alone means an invalid token. slurmrestd returns 401 without a token and 511 with an invalid one.
pub(super) fn is_unauthorised(status: u16) -> bool {
    matches!(status, 401 | 403 | 511)
}

/// Returns the decoded response or its error.
pub(super) fn answer<B: Body>(
    request: &Request,
    rest: RestVersion,
    reply: &Reply,
) -> Result<Envelope<B::Output>, Error> {
    read::<B>(request, rest, reply).map_err(|error| error.discreet(reply))
}

fn read<B: Body>(request: &Request, rest: RestVersion, reply: &Reply) -> Result<Envelope<B::Output>, Error> {
    let (status, body) = (reply.status, reply.body.as_slice());
    let kind = request.call.route().kind;
    if status == 204 && kind == Kind::Get {
        return Err(not_found(request));
    }
    if !(200..300).contains(&status) {
        return Err(failure(request, Some(rest), reply));
    }
    // A write may be acknowledged with an empty body.
    let body = if body.is_empty() && kind == Kind::Write { b"{}".as_slice() } else { body };
    let undecodable = |source| Error::Undecodable { call: request.call, source: Box::new(source) };
    let envelope = decode::<B>(body).map_err(undecodable)?;
    if !envelope.errors.is_empty() {
        return Err(refusal(request, status, envelope.errors));
    }
    // 26.05 reports a missing partition with a warning: no error, no list.
    let missing = |warning: &Warning| warning.description.starts_with("Unable to find");
    if kind == Kind::Get && envelope.warnings.iter().any(missing) {
        return Err(not_found(request));
    }
    envelope.finish().map_err(undecodable)
}

/// Interprets a status other than success.
pub(super) fn failure(request: &Request, rest: Option<RestVersion>, reply: &Reply) -> Error {
    let (status, body) = (reply.status, reply.body.as_slice());
    if let Ok(envelope) = decode::<Nothing>(body)
        && !envelope.errors.is_empty()
    {
        return refusal(request, status, envelope.errors);
    }
    let call = request.call;
    // Remove the token before shortening: a part of it would still be a secret.
    let whole = String::from_utf8_lossy(body);
    let whole = reply.token.as_ref().map_or(whole.clone(), |token| whole.replace(token.expose(), "(token)").into());
    let text: String = whole.chars().filter(|c| !c.is_control()).take(MAX_TEXT).collect();
    // slurmrestd says this, in two wordings, about a path that it does not have; otherwise the object is missing, not
    // the path.
    let no_path = text.contains("requested URL");
    let refusal = || Box::new(Refusal { status, errors: Vec::new(), text: text.clone() });
    match (status, rest) {
        (404, Some(rest)) if no_path => Error::NotOffered { call, rest },
        (404, _) => not_found(request),
        (502..=504, _) => Error::DaemonDown { call, refusal: refusal() },
        _ if is_unauthorised(status) => Error::Unauthorised { call, refusal: refusal() },
        _ => Error::Refused { call, refusal: refusal() },
    }
}

/// Callers have no handling for failed steps, so they are errors.
pub(super) fn steps(request: &Request, steps: Vec<StepStatus>) -> Result<(), Error> {
    let failed = steps.into_iter().filter(|step| step.error.code != 0);
    let errors: Vec<ErrorEntry> = failed
        .map(|step| ErrorEntry {
            code: step.error.code,
            error: step.error.string,
            description: format!("job {}", step.step_id),
            source: String::new(),
        })
        .collect();
    if errors.is_empty() { Ok(()) } else { Err(refusal(request, 200, errors)) }
}

pub(super) fn not_found(request: &Request) -> Error {
    Error::NotFound { call: request.call, what: request.name.clone().unwrap_or_default() }
}

fn refusal(request: &Request, status: u16, errors: Vec<ErrorEntry>) -> Error {
    let refusal = Box::new(Refusal { status, errors, text: String::new() });
    let call = request.call;
    // 24.11 says this if slurmdbd rejects the token; 26.05 only reports slurmdbd as unreachable.
    let database = |entry: &ErrorEntry| entry.description.ends_with("authentication error");
    let denied = refusal.has_code(&[code::AUTHENTICATION]) || refusal.errors.iter().any(database);
    if is_unauthorised(status) || denied {
        Error::Unauthorised { call, refusal }
    } else if says_not_found(call, status, &refusal) {
        not_found(request)
    } else if status == 502 || refusal.has_code(&DOWN) {
        Error::DaemonDown { call, refusal }
    } else {
        Error::Refused { call, refusal }
    }
}

fn says_not_found(call: Call, status: u16, refusal: &Refusal) -> bool {
    let code = match call {
        Call::Node | Call::UpdateNode | Call::NodeTopology | Call::UpdateNodes | Call::DeleteNode => code::INVALID_NODE,
        Call::Job | Call::CancelJob | Call::RequeueJob => code::INVALID_JOB,
        Call::Reservation | Call::DeleteReservation => code::INVALID_RESERVATION,
        Call::Partition => code::INVALID_PARTITION,
        // For other calls these codes concern an object that the request only mentions.
        _ => return false,
    };
    let single = call.route().kind == Kind::Get;
    // "Failure to query", error zero, "No error": reads of one node or reservation report a missing object this way.
    let nothing = single && status == 200 && refusal.errors.iter().all(|entry| entry.code == 0);
    // 24.11 reports a missing partition under a code that means something else.
    let worded = single && refusal.errors.iter().any(|entry| entry.description.starts_with("Unable to find"));
    status == 404 || refusal.has_code(&[code]) || nothing || worded
}
