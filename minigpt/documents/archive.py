"""The members of an EPUB or a Word document, both zip files, read within a budget."""

import io
import posixpath
import zipfile
from typing import Any

from minigpt.documents.limited_reading import RefusedError
from minigpt.documents.limits import TOO_DEEP, MarkupBudget


class Archive:
    """A zip file whose members are markup."""

    def __init__(self, content: bytes, ratio: int) -> None:
        """`ratio` is how many times its size what is read may have.

        Raises: BadZipFile if it is no zip file.
        """
        self.budget = MarkupBudget(len(content), ratio)
        self._file = zipfile.ZipFile(io.BytesIO(content))

    def __contains__(self, name: str) -> bool:
        return name in self._file.NameToInfo

    def read(self, name: str) -> bytes:
        """A member, decompressed.

        Raises: RefusedError if it is missing, encrypted or too large.
        """
        try:
            member = self._file.getinfo(posixpath.normpath(name))
        except KeyError:
            raise RefusedError(f"is damaged: it has no {name!r}; download it again") from None
        if member.flag_bits & 1:
            raise RefusedError("is encrypted; save it without a password")
        if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):  # the others may take gigabytes
            raise RefusedError(f"has a part compressed by method {member.compress_type}, not deflate; save it again")
        self.budget.reserve(member.file_size)  # decompressing stops there
        return self._file.read(member)

    def xml(self, name: str) -> Any:
        """The root element of an XML member; neither entities nor DTDs are loaded.

        Raises: RefusedError as `read`, and for tags that are too many or nested too deeply; XMLSyntaxError.
        """
        from lxml import etree

        parser = etree.XMLParser(
            resolve_entities=False, no_network=True, load_dtd=False, huge_tree=False, remove_comments=True,
            remove_pis=True,
        )  # fmt: skip
        markup = self.budget.count_nodes(self.budget.count_tags(self.read(name)), True)
        try:
            return etree.fromstring(markup, parser)
        except etree.XMLSyntaxError as error:
            if "Excessive depth" in str(error):
                raise RefusedError(TOO_DEEP) from error
            raise
