//! `[engine.cryptodev]`, `[engine.gpu]` and `[engine.cores]`.

use super::*;

/// With these engines named, and these lines at the end.
fn text(engines: &str, lines: &str) -> String {
    format!("{}\n{lines}", in_gateway(&format!("engines = {engines}")))
}

#[test]
fn a_cryptodev_has_a_device_queue_pairs_keys_and_arguments() {
    let section = "[engine.cryptodev]\ndevice = \"crypto_openssl\"";
    let configuration = good(&text("[\"cryptodev\", \"vaes\"]", section));
    assert_eq!(configuration.gateway.engines, ["cryptodev", "vaes", "portable"]);
    let device = "crypto_openssl".to_owned();
    let expected = Cryptodev { device, queue_pairs: 2, keys: 4096, eal: Vec::new() };
    assert_eq!(configuration.cryptodev, Some(expected));
    let more = format!("{section}\nqueue_pairs = 8\nkeys = 100\neal = [\"--no-huge\", \"-m\", \"256\"]");
    let read = good(&text("[\"cryptodev\"]", &more)).cryptodev.unwrap();
    assert_eq!((read.queue_pairs, read.keys, read.eal.join(" ")), (8, 100, "--no-huge -m 256".to_owned()));
}

#[test]
fn the_engine_and_its_section_go_together() {
    expect(&text("[\"cryptodev\"]", ""), &["the section [engine.cryptodev]"]);
    expect(&text("[\"cryptodev\"]", "[engine]"), &["the section [engine.cryptodev]"]);
    let section = "[engine.cryptodev]\ndevice = \"crypto_openssl\"";
    expect(&text("[\"vaes\"]", section), &["engine.cryptodev", "\"cryptodev\" in `engines`"]);
}

#[test]
fn what_is_no_device_is_told() {
    let device = |lines: &str| text("[\"cryptodev\"]", &format!("[engine.cryptodev]\n{lines}"));
    expect(&device("queue_pairs = 2"), &["the key `device`"]);
    expect(&device("device = \"two words\""), &["engine.cryptodev.device", "crypto_aesni_mb"]);
    expect(&device("device = \"x\"\nqueue_pairs = 0"), &["a number from 1 to 64"]);
    expect(&device("device = \"x\"\neal = \"--no-huge\""), &["a list"]);
    expect(&device("device = \"x\"\neal = [\"--help\"]"), &["engine.cryptodev.eal[0]", "--no-huge"]);
    expect(&device("device = \"x\"\nqueues = 2"), &["engine.cryptodev.queues"]);
}

#[test]
fn a_gpu_may_be_chosen_by_a_part_of_its_name() {
    let of = |lines: &str| good(&text("[\"gpu\", \"vaes\"]", lines));
    assert_eq!(of("").gateway.engines, ["gpu", "vaes", "portable"]);
    assert_eq!(of("").gpu.device, None);
    assert_eq!(of("[engine.gpu]").gpu.device, None);
    let named = of("[engine.gpu]\ndevice = \"NVIDIA H100\"");
    assert_eq!((named.gpu.device.as_deref(), named.cryptodev), (Some("NVIDIA H100"), None));
    expect(&text("[\"vaes\"]", "[engine.gpu]"), &["engine.gpu", "\"gpu\" in `engines`"]);
    expect(&text("[\"gpu\"]", "[engine.gpu]\ndevice = \" \""), &["engine.gpu.device", "clinfo -l"]);
    expect(&text("[\"gpu\"]", "[engine.gpu]\nkeys = 2"), &["engine.gpu.keys"]);
}

/// Six chunks: half of the pool is two that are under way, and one that gathers.
#[test]
fn a_gateway_with_a_gpu_has_buffers_for_whole_chunks_unless_it_says_otherwise() {
    let of = |engines: &str, lines: &str| good(&text(engines, lines));
    let buffers = |engines: &str, lines: &str| of(engines, lines).gateway.buffers;
    let gpu = "[\"gpu\", \"vaes\"]";
    assert_eq!(buffers(gpu, ""), 24_576);
    assert_eq!(buffers(gpu, "[scheduler]\nchunk = 1024"), 6144);
    assert_eq!(buffers(gpu, "[scheduler]\nchunk = 8192"), 49_152);
    assert_eq!(buffers("[\"vaes\", \"portable\"]", "[scheduler]\nchunk = 8192"), 4096);
    assert_eq!(buffers("[\"cores\", \"vaes\"]", ""), 4096);
    let note = of(gpu, "").buffers_note().expect("it is not the usual number");
    for part in ["24576 for each worker", "6 times `chunk`", "gpu", "MiB of frames"] {
        assert!(note.contains(part), "no {part:?} in: {note}");
    }
    assert_eq!(of("[\"vaes\"]", "").buffers_note(), None);
    let warned = |configuration: &Configuration| {
        configuration.warnings().into_iter().find(|line| line.starts_with("buffers = "))
    };
    assert_eq!(warned(&of(gpu, "")), None);
    // What is written is obeyed, and warned of where it is too small.
    let written = |number: &str| good(&text(&format!("{gpu}\nbuffers = {number}"), ""));
    let (few, enough) = (written("24575"), written("24576"));
    assert_eq!((few.gateway.buffers, enough.gateway.buffers), (24_575, 24_576));
    assert!(warned(&few).is_some_and(|line| line.contains("24576 are enough")));
    assert_eq!((warned(&enough), few.buffers_note()), (None, None));
    let without = good(&in_gateway("engines = [\"vaes\"]\nbuffers = 256"));
    assert_eq!((without.gateway.buffers, warned(&without)), (256, None));
}

#[test]
fn a_gpu_may_write_headers_where_that_is_said() {
    let of = |lines: &str| good(&text("[\"gpu\"]", &format!("[engine.gpu]\n{lines}"))).gpu;
    assert!(!of("").gpu_headers && !of("gpu_headers = false").gpu_headers);
    assert!(of("gpu_headers = true").gpu_headers);
    expect(&text("[\"gpu\"]", "[engine.gpu]\ngpu_headers = 1"), &["engine.gpu.gpu_headers", "true"]);
}

#[test]
fn a_gpu_may_be_reached_by_opencl_or_by_cuda_with_its_compiler() {
    let of = |lines: &str| good(&text("[\"gpu\"]", &format!("[engine.gpu]\n{lines}"))).gpu;
    assert_eq!((of("").api, of("").nvrtc), (None, None));
    assert_eq!(of("api = \"opencl\"").api, Some(GpuApi::OpenCl));
    let cuda = of("api = \"cuda\"\nnvrtc = \"/usr/lib/libnvrtc.so.12\"");
    assert_eq!((cuda.api, cuda.nvrtc), (Some(GpuApi::Cuda), Some("/usr/lib/libnvrtc.so.12".into())));
    assert_eq!(
        [of(""), of("devices = 2"), of("devices = \"all\"")].map(|gpu| gpu.devices),
        [Some(1), Some(2), None]
    );
    expect(&text("[\"gpu\"]", "[engine.gpu]\ndevices = 0"), &["engine.gpu.devices", "\"all\""]);
    expect(&text("[\"gpu\"]", "[engine.gpu]\napi = \"vulkan\""), &["engine.gpu.api", "\"cuda\""]);
    expect(
        &text("[\"gpu\"]", "[engine.gpu]\nnvrtc = \"libnvrtc.so\""),
        &["engine.gpu.nvrtc", "absolute path"],
    );
}

#[test]
fn cores_have_threads_engines_and_processors() {
    let of = |lines: &str| good(&text("[\"cores\", \"vaes\"]", lines));
    assert_eq!(of("").gateway.engines, ["cores", "vaes", "portable"]);
    let without = Cores { threads: 1, engines: ENGINES.map(str::to_owned).into(), processors: Vec::new() };
    assert_eq!((of("").cores, of("[engine.cores]").cores), (without.clone(), without));
    let lines = "threads = 3\nengines = [\"ipsec-mb\", \"portable\"]\nprocessors = [2, 4, 6]";
    let expected = Cores {
        threads: 3,
        engines: ["ipsec-mb", "portable"].map(str::to_owned).into(),
        processors: vec![2, 4, 6],
    };
    assert_eq!(of(&format!("[engine.cores]\n{lines}")).cores, expected);
    expect(&text("[\"vaes\"]", "[engine.cores]"), &["engine.cores", "\"cores\" in `engines`"]);
    let bad = |line: &str| text("[\"cores\"]", &format!("[engine.cores]\n{line}"));
    expect(&bad("threads = 0"), &["engine.cores.threads", "a number from 1 to 64"]);
    expect(&bad("engines = [\"gpu\"]"), &["engine.cores.engines[0]", "ipsec-mb"]);
    expect(&bad("processors = [1024]"), &["engine.cores.processors[0]", "a number from 0 to 1023"]);
    expect(&bad("queues = 2"), &["engine.cores.queues"]);
}
