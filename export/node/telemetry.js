/** onnxruntime writes a device id and sends events, unless this is set before it is loaded: import this module first. */
process.env.ORT_DISABLE_TELEMETRY ??= "1";
