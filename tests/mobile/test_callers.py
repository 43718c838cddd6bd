"""The Kotlin that comes with a package, compiled against stubs of the libraries' interfaces."""

from __future__ import annotations

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


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("kotlinc") is None, reason="no Kotlin on the path: apt install kotlin")
@pytest.mark.parametrize("ids", [False, True])
def test_the_kotlin_of_a_package_compiles(tmp_path: Path, ids: bool) -> None:
    bundle_writer.export(make_run(tmp_path / "tiny"), ["fp32"], tmp_path / "x", lambda line: None)
    package.write(tmp_path / "x", tmp_path / "phone", None, lambda line: None, ids)
    for name, source in STUBS.items():
        path = tmp_path / "java" / f"{name}.java"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"package {name.rpartition('/')[0].replace('/', '.')};{source}", encoding="utf-8")
    (tmp_path / "java" / "Use.kt").write_text(USE, encoding="utf-8")
    readme = (tmp_path / "phone" / "README.md").read_text(encoding="utf-8")
    shown = re.findall(r"```kotlin\n(import .*?)```", readme, re.DOTALL)
    assert len(shown) == 1 and "fun similarity(" in shown[0]
    (tmp_path / "App.kt").write_text(shown[0], encoding="utf-8")
    sources = [tmp_path / "App.kt", tmp_path / "phone" / "Encoder.kt", tmp_path / "java"]
    command = ["kotlinc", *map(str, sources), "-d", str(tmp_path / "classes")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "error:" not in done.stderr, done.stderr
    assert {path.name for path in (tmp_path / "classes").rglob("*.class")} >= {"AppKt.class", "Encoder.class"}
    (tmp_path / "App.kt").write_text(shown[0].replace("encoder.embed", "encoder.embedd"), encoding="utf-8")
    assert subprocess.run(command, capture_output=True, check=False).returncode != 0, "nothing was compiled"
