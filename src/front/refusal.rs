//! Calls that the front-end refuses itself, before it asks the provider: for each such call, the
//! argument, the problem and the remedy. Layers get this explanation (`ferroverbs_layer.refused`),
//! because a call that reaches no operation is otherwise invisible to them.

use core::ffi::{CStr, c_void};

use abi::ferroverbs_refusal;
use cface::Errno;

use super::layers;

/// Why a call fails: its errno, and an explanation where the front-end itself found the reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    error: Errno,
    explanation: Option<Explanation>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Explanation {
    argument: &'static CStr,
    value: Option<u64>,
    problem: &'static CStr,
    remedy: &'static CStr,
}

impl Refusal {
    /// A pointer that must not be NULL: `EINVAL`.
    pub(crate) const fn of_null(argument: &'static CStr) -> Self {
        let remedy = c"pass the address of a live object or structure; check the result of the call that made it";
        Self::new(Errno::EINVAL, argument, c"is NULL", remedy)
    }

    /// A refusal because of `argument`. `problem` follows the argument's name in a message, and
    /// `remedy` says what the program should do.
    pub(crate) const fn new(
        error: Errno,
        argument: &'static CStr,
        problem: &'static CStr,
        remedy: &'static CStr,
    ) -> Self {
        Self { error, explanation: Some(Explanation { argument, value: None, problem, remedy }) }
    }

    /// An errno without an explanation of the front-end: of an operation of the provider, which
    /// layers see themselves, of an operation that the provider does not have, or of a question to
    /// which the errno is the answer.
    pub(crate) const fn unexplained(error: Errno) -> Self {
        Self { error, explanation: None }
    }

    /// The front-end has no memory for `structure`: `ENOMEM`.
    pub(crate) const fn out_of_memory(structure: &'static CStr) -> Self {
        let remedy = c"free memory of the process, or raise its limit (ulimit -v, or the memory limit of its container)";
        Self::new(Errno::ENOMEM, structure, c"cannot be allocated", remedy)
    }

    /// An errno of the provider's opening of a device, which is before any layer of the context.
    pub(crate) const fn of_opening(error: Errno) -> Self {
        let remedy = c"set VERBS_LOG_LEVEL=4 and VERBS_LOG_FILE, or run `ferroverbs doctor`: the provider says more there";
        Self::new(error, c"device", c"cannot be opened by its provider", remedy)
    }

    /// An errno of `madvise(2)` for the memory at `address`: fork support excludes registered
    /// memory from child processes before the provider sees the registration.
    pub(crate) fn of_fork_support(error: Errno, address: *const c_void) -> Self {
        let remedy = c"map the whole range before the registration, and raise vm.max_map_count if the process has many mappings";
        let problem = c"begins a range that madvise(2) cannot exclude from child processes, as ibv_fork_init asks";
        Self::new(error, c"addr", problem, remedy).with_value(address.addr() as u64)
    }

    /// The same refusal, with the argument's value.
    pub(crate) const fn with_value(self, value: u64) -> Self {
        match self.explanation {
            Some(explanation) => Self {
                explanation: Some(Explanation { value: Some(value), ..explanation }),
                ..self
            },
            None => self,
        }
    }

    /// Gives the explanation to the layers, and returns the errno.
    #[cold]
    pub(crate) fn report(self, call: &'static CStr) -> Errno {
        if let Some(explanation) = self.explanation {
            let Explanation { argument, value, problem, remedy } = explanation;
            layers::tell_refused(&ferroverbs_refusal {
                size: size_of::<ferroverbs_refusal>(),
                call: call.as_ptr(),
                argument: argument.as_ptr(),
                problem: problem.as_ptr(),
                remedy: remedy.as_ptr(),
                value: value.unwrap_or(0),
                has_value: u32::from(value.is_some()),
                error: self.error.raw(),
            });
        }
        self.error
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_reports_its_errno() {
        let refusal = Refusal::of_null(c"attr");
        assert_eq!(refusal.report(c"ibv_create_srq"), Errno::EINVAL);
        assert_eq!(refusal.with_value(7).report(c"ibv_create_srq"), Errno::EINVAL);
        assert_eq!(Refusal::unexplained(Errno::EMFILE).report(c"ibv_create_srq"), Errno::EMFILE);
    }

    #[test]
    fn memory_opening_and_fork_support_are_explained() {
        let address = core::ptr::without_provenance(0x1000);
        for refusal in [
            Refusal::out_of_memory(c"the completion channel"),
            Refusal::of_opening(Errno::ENOMEM),
            Refusal::of_fork_support(Errno::ENOMEM, address),
        ] {
            assert!(refusal.explanation.is_some(), "{refusal:?}");
            assert_eq!(refusal.report(c"ibv_reg_mr"), Errno::ENOMEM);
        }
    }

    #[test]
    fn a_value_is_added_only_to_an_explanation() {
        let without = Refusal::unexplained(Errno::EBUSY);
        assert_eq!(without.with_value(1), without);
        let value =
            Refusal::of_null(c"attr").with_value(1).explanation.and_then(|known| known.value);
        assert_eq!(value, Some(1));
    }
}
