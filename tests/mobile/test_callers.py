"""The Kotlin and the Swift of a package, compiled against stubs of the libraries' interfaces."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from edgedistill.export import bundle_writer
from edgedistill.mobile import package
from tests.export.test_export import make_run

# What the callers use of the Java interfaces of onnxruntime-android, its extensions and Android.
STUBS = {
    "ai/onnxruntime/OrtEnvironment": """
        public final class OrtEnvironment implements AutoCloseable {
            public static OrtEnvironment getEnvironment() { return null; }
            public OrtSession createSession(String path, OrtSession.SessionOptions options)
                throws OrtException { return null; }
            public void close() {}
        }""",
    "ai/onnxruntime/OrtException": "public class OrtException extends Exception {}",
    "ai/onnxruntime/OnnxValue": """
        public interface OnnxValue extends AutoCloseable {
            Object getValue() throws OrtException;
            void close();
        }""",
    "ai/onnxruntime/OnnxTensorLike": "public abstract class OnnxTensorLike implements OnnxValue {}",
    "ai/onnxruntime/OnnxTensor": """
        import java.nio.LongBuffer;
        public class OnnxTensor extends OnnxTensorLike {
            public static OnnxTensor createTensor(OrtEnvironment in, Object data)
                throws OrtException { return null; }
            public static OnnxTensor createTensor(OrtEnvironment in, LongBuffer data, long[] shape)
                throws OrtException { return null; }
            public Object getValue() throws OrtException { return null; }
            public void close() {}
        }""",
    "ai/onnxruntime/OrtSession": """
        import java.util.Map;
        import java.util.Set;
        public class OrtSession implements AutoCloseable {
            public Result run(Map<String, ? extends OnnxTensorLike> inputs, Set<String> outputs)
                throws OrtException { return null; }
            public void close() throws OrtException {}
            public static class Result implements AutoCloseable {
                public OnnxValue get(int index) { return null; }
                public void close() {}
            }
            public static class SessionOptions implements AutoCloseable {
                public void registerCustomOpLibrary(String path) throws OrtException {}
                public void setIntraOpNumThreads(int count) throws OrtException {}
                public void close() {}
            }
        }""",
    "ai/onnxruntime/extensions/OrtxPackage": """
        public class OrtxPackage { public static String getLibraryPath() { return ""; } }""",
    "android/content/Context": """
        public abstract class Context {
            public abstract java.io.File getFilesDir();
            public abstract android.content.res.AssetManager getAssets();
        }""",
    "android/content/res/AssetManager": """
        public final class AssetManager {
            public java.io.InputStream open(String name) throws java.io.IOException { return null; }
        }""",
}

# of Kotlin's standard library since 1.8; Debian's compiler is older
USE = """package edgedistill
inline fun <T : AutoCloseable, R> T.use(block: (T) -> R): R = block(this)
"""


SWIFTC = os.environ.get("SWIFTC", "swiftc")

# The Swift names of what the caller uses of onnxruntime-objc and its extensions, as Xcode imports them.
BINDINGS = """
import Foundation
public enum ORTLoggingLevel: Int { case warning = 2 }
public enum ORTTensorElementDataType: Int32 { case int64 = 4 }
public typealias ORTCAPIRegisterCustomOpsFnPtr = (OpaquePointer?, OpaquePointer?) -> OpaquePointer?
public class ORTEnv { public init(loggingLevel: ORTLoggingLevel) throws {} }
public class ORTRunOptions {}
public class ORTSessionOptions {
    public init() throws {}
    public func setIntraOpNumThreads(_ threads: Int32) throws {}
    public func registerCustomOps(functionPointer: ORTCAPIRegisterCustomOpsFnPtr) throws {}
}
public class ORTValue {
    public init(tensorData: NSMutableData, elementType: ORTTensorElementDataType, shape: [NSNumber]) throws {}
    public init(tensorStringData: [String], shape: [NSNumber]) throws {}
    public func tensorData() throws -> NSMutableData { NSMutableData() }
}
public class ORTSession {
    public init(env: ORTEnv, modelPath: String, sessionOptions: ORTSessionOptions?) throws {}
    public func run(withInputs: [String: ORTValue], outputNames: Set<String>, runOptions: ORTRunOptions?)
        throws -> [String: ORTValue] { [:] }
}
"""
REGISTER = (
    "func RegisterCustomOps(_ options: OpaquePointer?, _ api: OpaquePointer?) -> OpaquePointer? { nil }"
)
EXTENSIONS = """
import OnnxRuntimeBindings
public class OrtExt {
    public class func getRegisterCustomOpsFunctionPointer() -> ORTCAPIRegisterCustomOpsFnPtr {
        { _, _ in nil }
    }
}
"""
MODULES = {"OnnxRuntimeBindings": BINDINGS, "OnnxRuntimeExtensions": EXTENSIONS}


def make_package(folder: Path, ids: bool, language: str) -> str:
    """A package in folder/phone; the lines of its README that call it."""
    bundle_writer.export(make_run(folder / "tiny"), ["fp32"], folder / "x", lambda line: None)
    package.write(folder / "x", folder / "phone", None, lambda line: None, ids)
    readme = (folder / "phone" / "README.md").read_text(encoding="utf-8")
    shown: list[str] = re.findall(rf"```{language}\n(import .*?)```", readme, re.DOTALL)
    assert len(shown) == 1 and "similarity(" in shown[0]
    return shown[0]


def errors(*command: object) -> str:
    """A compiler's, empty where it has none."""
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False)
    return done.stderr if done.returncode or "error:" in done.stderr else ""


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("kotlinc") is None, reason="no Kotlin on the path: apt install kotlin")
@pytest.mark.parametrize("ids", [False, True])
def test_the_kotlin_of_a_package_compiles(tmp_path: Path, ids: bool) -> None:
    shown = make_package(tmp_path, ids, "kotlin")
    for name, source in STUBS.items():
        path = tmp_path / "java" / f"{name}.java"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"package {name.rpartition('/')[0].replace('/', '.')};{source}", encoding="utf-8")
    (tmp_path / "java" / "Use.kt").write_text(USE, encoding="utf-8")
    (tmp_path / "App.kt").write_text(shown, encoding="utf-8")
    sources = [tmp_path / "App.kt", tmp_path / "phone" / "Encoder.kt", tmp_path / "java"]
    assert not errors("kotlinc", *sources, "-d", tmp_path / "classes")
    assert {path.name for path in (tmp_path / "classes").rglob("*.class")} >= {"AppKt.class", "Encoder.class"}
    (tmp_path / "App.kt").write_text(shown.replace("encoder.embed", "encoder.embedd"), encoding="utf-8")
    assert errors("kotlinc", *sources, "-d", tmp_path / "classes"), "nothing was compiled"


@pytest.mark.slow
@pytest.mark.skipif(shutil.which(SWIFTC) is None, reason="no Swift: neither $SWIFTC nor swiftc on the path")
@pytest.mark.parametrize("ids", [False, True], ids=["texts", "ids"])
@pytest.mark.parametrize("cocoapods", [False, True], ids=["package", "cocoapods"])
def test_the_swift_of_a_package_compiles(tmp_path: Path, ids: bool, cocoapods: bool) -> None:
    """With the Swift package's modules, and with CocoaPods, whose bridging header needs no import."""
    shown = make_package(tmp_path, ids, "swift")
    app = [tmp_path / "App.swift", tmp_path / "phone" / "Encoder.swift"]
    app[0].write_text(shown, encoding="utf-8")
    command = [SWIFTC, "-warnings-as-errors", "-parse-as-library", "-I", tmp_path]
    if cocoapods:
        app.append(tmp_path / "Bridged.swift")
        app[-1].write_text(BINDINGS + REGISTER, encoding="utf-8")
    for name, source in {} if cocoapods else MODULES.items():
        path = tmp_path / f"{name}.swift"
        path.write_text(source, encoding="utf-8")
        out = ["-emit-module", "-emit-module-path", tmp_path / f"{name}.swiftmodule", "-module-name", name]
        assert not errors(*command, *out, path)
    assert not errors(*command, "-typecheck", *app)
    app[0].write_text(shown.replace("encoder.embed", "encoder.embedd"), encoding="utf-8")
    assert errors(*command, "-typecheck", *app), "nothing was compiled"
