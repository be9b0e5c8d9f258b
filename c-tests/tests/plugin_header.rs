//! The headers of the plugin extension and of layers: a C compiler accepts them in every standard,
//! with the layout of the Rust forms.

use std::path::Path;
use std::process::Command;

/// Sizes and offsets that `abi/src/ext.rs`, `abi/src/emulation.rs`, `abi/src/layer.rs` and
/// `abi/src/cm_layer.rs` assert for the Rust forms.
const PROGRAM: &str = r"
#include <infiniband/ferroverbs_plugin.h>
#include <infiniband-provider/ferroverbs_layer.h>
#include <infiniband-provider/ferroverbs_cm_layer.h>
#include <stddef.h>
#define AT(type, field, offset) (offsetof(struct type, field) == (offset))
int main(void)
{
	return !(sizeof(struct ferroverbs_device_info) == 144
		&& AT(ferroverbs_device_info, dev_name, 64) && AT(ferroverbs_device_info, node_guid, 128)
		&& AT(ferroverbs_device_info, node_type, 136) && AT(ferroverbs_device_info, num_ports, 140)
		&& sizeof(struct ferroverbs_plugin_ext) == 112
		&& AT(ferroverbs_plugin_ext, device_ops, 8) && AT(ferroverbs_plugin_ext, announce, 16)
		&& AT(ferroverbs_plugin_ext, query_gid, 24) && AT(ferroverbs_plugin_ext, query_pkey, 32)
		&& AT(ferroverbs_plugin_ext, create_comp_channel, 40)
		&& AT(ferroverbs_plugin_ext, destroy_comp_channel, 48)
		&& AT(ferroverbs_plugin_ext, is_cmd_fd, 56) && AT(ferroverbs_plugin_ext, await_comp_event, 64)
		&& AT(ferroverbs_plugin_ext, emulation, 104)
		&& sizeof(struct ferroverbs_vendor_device) == 848
		&& AT(ferroverbs_vendor_device, provider, 8) && AT(ferroverbs_vendor_device, driver_id, 72)
		&& AT(ferroverbs_vendor_device, abi_version, 76) && AT(ferroverbs_vendor_device, modalias, 80)
		&& AT(ferroverbs_vendor_device, ibdev_path, 592)
		&& sizeof(struct ferroverbs_emulation) == 48
		&& AT(ferroverbs_emulation, describe, 8) && AT(ferroverbs_emulation, open_device, 16)
		&& AT(ferroverbs_emulation, close_device, 24) && AT(ferroverbs_emulation, command, 32)
		&& AT(ferroverbs_emulation, hook, 40)
		&& sizeof(struct ferroverbs_layer) == 48
		&& AT(ferroverbs_layer, generation, 8) && AT(ferroverbs_layer, reserved, 12)
		&& AT(ferroverbs_layer, name, 16) && AT(ferroverbs_layer, attach, 24)
		&& AT(ferroverbs_layer, awaits, 32) && AT(ferroverbs_layer, refused, 40)
		&& sizeof(struct ferroverbs_refusal) == 56
		&& AT(ferroverbs_refusal, call, 8) && AT(ferroverbs_refusal, argument, 16)
		&& AT(ferroverbs_refusal, problem, 24) && AT(ferroverbs_refusal, remedy, 32)
		&& AT(ferroverbs_refusal, value, 40) && AT(ferroverbs_refusal, has_value, 48)
		&& AT(ferroverbs_refusal, error, 52)
		&& sizeof(struct verbs_context_ops) == 744
		&& sizeof(struct ferroverbs_cm_layer) == 32
		&& AT(ferroverbs_cm_layer, calls, 8) && AT(ferroverbs_cm_layer, name, 16)
		&& AT(ferroverbs_cm_layer, attach, 24)
		&& sizeof(struct ferroverbs_cm_calls) == @CALLS@ * sizeof(void *)
@OFFSETS@);
}
";

#[test]
fn a_c_compiler_lays_it_out_as_the_rust_form() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let source = folder.join("plugin_header.c");
    let include = Path::new(env!("CARGO_MANIFEST_DIR")).join("../include");
    let names = abi::ferroverbs_cm_calls::NAMES;
    let offset = |(at, name)| format!("\t\t&& AT(ferroverbs_cm_calls, {name}, {})\n", at * 8);
    let offsets: String = names.iter().enumerate().map(offset).collect();
    let text = PROGRAM.replace("@CALLS@", &names.len().to_string()).replace("@OFFSETS@", &offsets);
    std::fs::write(&source, text).expect("cargo's folder is writable");
    for standard in ["c99", "c11", "c17", "c2x"] {
        let program = folder.join(format!("plugin_header_{standard}"));
        let compiled = Command::new("gcc")
            .arg(format!("-std={standard}"))
            .args(["-Wall", "-Wextra", "-Wpedantic", "-Werror", "-I"])
            .arg(&include)
            .arg(&source)
            .arg("-o")
            .arg(&program)
            .status()
            .expect("gcc runs");
        assert!(compiled.success(), "{standard}");
        assert!(Command::new(program).status().expect("it runs").success(), "{standard}");
    }
}
