//! Calls that the front-end refuses itself, before it asks the provider: for each such call, the
//! argument, the problem and the remedy. Layers get this explanation (`ferroverbs_layer.refused`),
//! because a call that reaches no operation is otherwise invisible to them.

use core::ffi::CStr;

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

/// An errno of the provider, the plugin or the kernel, or a missing operation. Layers see the
/// operations of a provider themselves.
impl From<Errno> for Refusal {
    fn from(error: Errno) -> Self {
        Self { error, explanation: None }
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
        assert_eq!(Refusal::from(Errno::EMFILE).report(c"ibv_create_srq"), Errno::EMFILE);
    }

    #[test]
    fn a_value_is_added_only_to_an_explanation() {
        let without = Refusal::from(Errno::EBUSY);
        assert_eq!(without.with_value(1), without);
        let value =
            Refusal::of_null(c"attr").with_value(1).explanation.and_then(|known| known.value);
        assert_eq!(value, Some(1));
    }
}
