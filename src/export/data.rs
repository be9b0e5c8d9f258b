//! The one exported variable, `verbs_allow_disassociate_destroy`: a byte that providers read
//! through the GOT, under the private node of every generation. [`crate::front::disassociate`]
//! reads and writes it.

macro_rules! versions {
    ($($at:literal $node:literal)*) => {
        core::arch::global_asm!(
            ".pushsection .bss.verbs_allow_disassociate_destroy, \"aw\", %nobits",
            ".globl fv.allow_disassociate_destroy",
            ".hidden fv.allow_disassociate_destroy",
            "fv.allow_disassociate_destroy:",
            $(
                concat!(".globl fv.allow_disassociate_destroy.", $node),
                concat!(".type fv.allow_disassociate_destroy.", $node, ", %object"),
                concat!("fv.allow_disassociate_destroy.", $node, ":"),
                concat!(".size fv.allow_disassociate_destroy.", $node, ", 1"),
                concat!(
                    ".symver fv.allow_disassociate_destroy.", $node,
                    ", verbs_allow_disassociate_destroy", $at, $node, ", remove"
                ),
            )*
            ".zero 1",
            ".popsection",
        );
    };
}

private_nodes!(versions);
